// The numbers of a page's pictures.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Drawing, paint, resized } from "../page/draw.js";

const SIZE = { width: 2, height: 1, last: false, paper: 1, ink: 0, pixels: {} };

/** Return the row of a picture of two pixels, from red, green, blue and grey levels. */
function row(levels, facts) {
  const drawing = Object.create(Drawing.prototype);
  return Object.assign(drawing, { facts: { ...SIZE, ...facts }, picture: {}, sampled: () => levels }).row();
}

const COLOURS = [
  [0, 51, 255, 0],
  [255, 102, 0, 0],
];

test("colours have the range of the training rows, or the recorded one", () => {
  assert.deepEqual(row(COLOURS, { channels: 3 }), [0, 1, 0.2, 0.4, 1, 0]);
  assert.deepEqual(row(COLOURS, { channels: 3, last: true }), [0, 0.2, 1, 1, 0.4, 0]);
  const pixels = { color: "bgr", scale: 51, mean: [1], std: [2] };
  assert.deepEqual(row(COLOURS, { channels: 3, pixels }), [2, -0.5, 0, 0.5, -0.5, 2]);
});

test("inputs of whole numbers are rounded", () => {
  assert.deepEqual(row([0.3, 0.5], { channels: 1, paper: 0, ink: 16, whole: true }), [5, 8]);
  assert.deepEqual(row([0.3, 0.5], { channels: 1, paper: 0, ink: 16 }), [4.8, 8]);
});

test("a picture is resized and cut as in training, and never squeezed without a record", () => {
  const picture = { width: 400, height: 200 };
  const size = (pixels) => resized(picture, { width: 20, height: 20, pixels });
  assert.deepEqual(size({ resize: 25, crop: 20 }), [50, 25]);
  assert.deepEqual(size({ resize: [20, 30], crop: 20 }), [30, 20]);
  assert.deepEqual(size({ crop: 20 }), [400, 200]);
  assert.deepEqual(size({}), [40, 20]);
});

test("what the model sees has the colours of the picture, and ink in black", () => {
  const shown = (row, facts) => {
    let data;
    const createImageData = () => ({ data: new Uint8ClampedArray(8) });
    const context = { createImageData, putImageData: (image) => (data = [...image.data]) };
    paint({ getContext: () => context }, row, { ...SIZE, ...facts });
    return data;
  };
  const colours = { channels: 3, paper: 0, ink: 1 };
  assert.deepEqual(shown([0, 1, 0.2, 0.4, 1, 0], colours), [0, 51, 255, 255, 255, 102, 0, 255]);
  const pixels = { color: "bgr" };
  assert.deepEqual(shown([1, 0, 0.2, 0.4, 0, 1], { ...colours, pixels }), [0, 51, 255, 255, 255, 102, 0, 255]);
  assert.deepEqual(shown([0, 16], { channels: 1, paper: 0, ink: 16 }), [255, 255, 255, 255, 0, 0, 0, 255]);
  assert.deepEqual(shown(null, colours), Array(8).fill(255));
});
