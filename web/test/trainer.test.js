// Runs with bundles of tests/bundle/test_javascript.py: BUNDLES is their folder, RUNTIME the package to use.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import { Trainer } from "../src/index.js";

const { BUNDLES, RUNTIME } = process.env;
const load = (name, options) => Trainer.load(join(BUNDLES, name), { runtime: RUNTIME, ...options });
const results = async (name) => JSON.parse(await readFile(join(BUNDLES, `${name}.json`), "utf8"));
const rowsOf = ({ rows }) => ("X" in rows ? rows.X : rows);

function close(actual, expected, tolerance = 1e-5) {
  assert.equal(actual.length, expected.length);
  actual.forEach((value, place) => assert.ok(Math.abs(value - expected[place]) <= tolerance * Math.max(1, Math.abs(expected[place])), `${value} and ${expected[place]} at ${place}`));
}

for (const name of ["numbers", "table"])
  for (const graph of ["train", "step"])
    test(`${name}: losses by ${graph}.onnx are those of Python`, async () => {
      const expected = await results(name);
      const trainer = await load(name, { graph });
      const steps = [];
      const { losses } = await trainer.fit(rowsOf(expected), expected.labels, {
        epochs: 3,
        onEpoch: ({ stepLosses }) => steps.push(...stepLosses),
      });
      close(steps, expected.steps);
      close(losses, expected.epochs);
      const { loss, accuracy } = await trainer.evaluate(rowsOf(expected), expected.labels);
      assert.ok(loss < losses[0] && accuracy > 0.3);
    });
