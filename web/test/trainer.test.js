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

for (const worker of [false, true])
  test(`a fit goes on where a saved one ended, ${worker ? "in a worker" : "in this thread"}`, async () => {
    const { rows: { X }, labels } = await results("numbers");
    const [whole, parts] = [await load("numbers", { worker }), await load("numbers", { worker })];
    await whole.fit(X, labels, { epochs: 3 });
    await parts.fit(X, labels, { epochs: 1 });
    const saved = await parts.save();
    await parts.reset();
    assert.equal(await parts.restore(new Blob([saved])), true);
    await parts.fit(X, labels, { epochs: 2 });
    assert.deepEqual(await parts.weights(), await whole.weights());
    assert.deepEqual(await parts.save(), await whole.save());
    await Promise.all([whole.close(), parts.close()]);
  });

for (const worker of [false, true])
  test(`an aborted fit keeps its whole epochs, ${worker ? "in a worker" : "in this thread"}`, async () => {
    const { rows, labels } = await results("numbers");
    const [trainer, other] = [await load("numbers", { worker }), await load("numbers")];
    const stop = new AbortController();
    const epochs = [];
    const onEpoch = ({ epoch }) => (epochs.push(epoch), epoch === 2 && stop.abort(new Error("enough")));
    await assert.rejects(trainer.fit(rows.X, labels, { epochs: 1e6, onEpoch, signal: stop.signal }), /enough/);
    const after = await trainer.weights();
    await trainer.close();
    await other.fit(rows.X, labels, { epochs: worker ? 1 : 2 });
    if (!worker) assert.deepEqual(after, await other.weights());
    await assert.rejects((await load("numbers", { worker: false })).fit(rows.X, labels, { onEpoch: () => assert.fail("mine") }), /mine/);
  });
