// Runs with bundles of tests/bundle/test_javascript.py: BUNDLES is their folder, RUNTIME the package to use.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import { Trainer } from "../src/index.js";
import { encodeLabels, encodeRows } from "../src/rows.js";
import { opened } from "../src/saved.js";

const { BUNDLES, RUNTIME } = process.env;
const load = (name, options) => Trainer.load(join(BUNDLES, name), { runtime: RUNTIME, ...options });
const results = async (name) => JSON.parse(await readFile(join(BUNDLES, `${name}.json`), "utf8"));
const rowsOf = ({ rows }) => ("X" in rows ? rows.X : rows);

function close(actual, expected, tolerance = 1e-5) {
  assert.equal(actual.length, expected.length);
  actual.forEach((value, place) =>
    assert.ok(
      Math.abs(value - expected[place]) <= tolerance * Math.max(1, Math.abs(expected[place])),
      `${value} and ${expected[place]} at ${place}`,
    ),
  );
}

for (const name of ["numbers", "table", "summed"])
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
      close([loss], [expected.loss]);
      assert.equal(accuracy, expected.accuracy);
    });

for (const name of ["counts", "several"])
  test(`${name}: losses and predictions are those of Python`, async () => {
    const { rows, labels, steps, outputs } = await results(name);
    const trainer = await load(name);
    const found = [];
    await trainer.fit(rows.X, labels, { epochs: 3, onEpoch: ({ stepLosses }) => found.push(...stepLosses) });
    close(found, steps);
    const { values, probabilities, labels: predicted } = await trainer.predict(rows.X);
    if (name === "counts")
      close(values, outputs.flat().map(Math.exp)); // the model predicts logarithms
    else {
      close(
        probabilities.flatMap((row) => [...row]),
        outputs.flat(),
      );
      assert.deepEqual(
        predicted,
        probabilities.map((row) => Array.from(row, (p) => Number(p > 0.5))),
      );
    }
  });

for (const worker of [false, true])
  test(`a fit goes on where a saved one ended, ${worker ? "in a worker" : "in this thread"}`, async () => {
    const {
      rows: { X },
      labels,
    } = await results("numbers");
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
    const done = Number(opened(await trainer.save()).metadata.epochs);
    assert.ok(worker ? done >= 2 : done === 2, `${done} epochs`); // a worker goes on until it hears of the abort
    await other.fit(rows.X, labels, { epochs: done });
    assert.deepEqual(await trainer.weights(), await other.weights());
    await trainer.close();
    await assert.rejects(
      (await load("numbers", { worker: false })).fit(rows.X, labels, { onEpoch: () => assert.fail("mine") }),
      /mine/,
    );
  });

test("calls fail once the worker has failed", async () => {
  const create = '() => { setTimeout(() => { throw new Error("out of memory"); }); return new Promise(() => {}); }';
  const runtime = `data:text/javascript,export class Tensor {}; export const InferenceSession = { create: ${create} };`;
  const trainer = await load("numbers", { worker: true, runtime });
  await assert.rejects(trainer.predict((await results("numbers")).rows.X), /worker must run/);
  await assert.rejects(trainer.predict([]), /closed/);
  await trainer.close();
});

test("rows have many forms", async () => {
  const [numbers, table] = [await load("numbers"), await load("table")];
  const { rows } = await results("numbers");
  const { probabilities, labels, outputs } = await numbers.predict(rows.X);
  assert.deepEqual(outputs.probabilities.shape, [50, 3]);
  assert.equal(labels[0], probabilities[0].indexOf(Math.max(...probabilities[0])));
  const flat = Float32Array.from(rows.X.flat());
  for (const form of [
    flat,
    { X: rows.X },
    rows.X.map((X) => ({ X, other: 1 })),
    rows.X.map((row) => Float32Array.from(row)),
  ])
    assert.deepEqual((await numbers.predict(form)).probabilities, probabilities);
  const listed = (await results("table")).rows;
  const records = listed.city.map((city, row) => ({
    city,
    age: listed.age[row],
    vip: listed.vip[row],
    day: listed.day[row],
  }));
  const expected = (await table.predict(listed)).probabilities;
  assert.deepEqual((await table.predict(records)).probabilities, expected);
  const gaps = records.map(({ city, age, vip, day }) => ({
    city: city || null,
    age: age ?? "",
    vip: vip === "true",
    day,
  }));
  assert.deepEqual((await table.predict(gaps)).probabilities, expected);
});

/** Return a description of one input of a dtype. */
function described(dtype) {
  const input = (name, of) => ({ name, dtype: of, shape: ["N", 1] });
  const step = { inputs: [input("X", dtype), input("label", "float32"), input("weight", "float32")] };
  const prediction = { output: "p", label: "label", task: "regression", classes: null, padding: null };
  return {
    graphs: { predict: { inputs: [input("X", dtype)] }, step },
    ...{ rows: ["X", "label", "weight"], weights: [], sample_weight: "weight", columns: {}, table: {} },
    predictions: [prediction],
  };
}

for (const [dtype, value, expected] of [
  ["float32", " ", NaN],
  ["float32", " 1.5e1 ", 15],
  ["float32", "1e39"],
  ["float32", 1e39],
  ["float32", "0x10"],
  ["int32", "3", 3],
  ["int32", 3e9],
  ["uint8", 300],
  ["int8", 200],
  ["int64", 1n << 62n, 1n << 62n],
  ["int64", 1n << 70n],
  ["int64", " "],
  ["bool", "False", 0],
  ["bool", null],
  ["bool", " "],
  ["bool", 2],
])
  test(`an input of ${dtype} ${expected === undefined ? "rejects" : "holds"} ${JSON.stringify(String(value))}`, () => {
    const encoded = () => encodeRows(described(dtype), [{ X: value }]).arrays.X.data[0];
    if (expected === undefined) assert.throws(encoded, { name: "TrainerError" });
    else assert.equal(encoded(), expected);
  });

test("a label is no gap, and a weight a number from 0 on", () => {
  assert.throws(() => encodeLabels(described("float32"), [" "], undefined, 1), /Labels must be numbers/);
  for (const weight of [-1, null, NaN, " "])
    assert.throws(() => encodeLabels(described("float32"), [1], [weight], 1), /Weights of rows must be numbers from 0/);
});

test("labels are classes, as text too", async () => {
  const [one, other] = [await load("numbers"), await load("numbers")];
  const { rows, labels } = await results("numbers");
  await one.fit(rows.X, labels);
  await other.fit(rows.X, labels.map(String));
  assert.deepEqual(await one.weights(), await other.weights());
});

test("weights are one vector, and a model of its own holds them", async () => {
  const [one, other] = [await load("numbers"), await load("numbers")];
  const { rows, labels } = await results("numbers");
  await one.fit(rows.X, labels, { epochs: 2 });
  const vector = await one.weights();
  assert.ok(vector instanceof Float32Array && vector.length === one.description.graphs.step.inputs[0].shape[0]);
  await other.setWeights(vector);
  vector.fill(0); // a copy
  const expected = (await one.predict(rows.X)).probabilities;
  assert.deepEqual((await other.predict(rows.X)).probabilities, expected);
  const ort = (await import(RUNTIME)).default;
  const session = await ort.InferenceSession.create(await one.model());
  assert.deepEqual(session.inputNames, ["X"]);
  const { probabilities } = await session.run({
    X: new ort.Tensor("float32", Float32Array.from(rows.X.flat()), [50, 6]),
  });
  assert.deepEqual(probabilities.data, Float32Array.from(expected.flatMap((row) => [...row])));
});

test("predictions go on during a fit", async () => {
  const trainer = await load("numbers");
  const { rows, labels } = await results("numbers");
  const [before, during] = [(await trainer.predict(rows.X)).probabilities, []];
  await trainer.fit(rows.X, labels, { epochs: 3, onEpoch: () => during.push(trainer.predict(rows.X)) });
  await assert.rejects(Promise.all([trainer.fit(rows.X, labels), trainer.reset()]), /reset during fit/);
  assert.notDeepEqual((await during[0]).probabilities, before);
});

const X = [[1, 2, 3, 4, 5, 6]];
const row = { city: "Oslo", age: 40, vip: true, day: "2026-01-31" };
const bytes = (text) => new TextEncoder().encode(text);
const WRONG = [
  ["numbers", (t) => t.fit([], []), "at least one row", "none", "more rows"],
  ["numbers", (t) => t.fit([[1, 2]], [0]), "rows of shape [6]", "2 values in row 0", "list of values"],
  ["numbers", (t) => t.fit(new Float32Array(7), [0]), "rows of shape [6]", "7 numbers", "list of values"],
  ["numbers", (t) => t.fit([[1, 2, 3, 4, 5, "x"]], [0]), "finite numbers", `"x" in 'X', row 0`, "null"],
  ["numbers", (t) => t.fit(X, [3]), "classes of the model", "3 in labels, row 0", "0, 1, 2"],
  ["numbers", (t) => t.fit(X, [0, 1]), "one label", "1 rows, 2 labels", "one length"],
  ["numbers", (t) => t.fit(X), "one value for each row", "undefined", "list"],
  ["numbers", (t) => t.fit(X, [0], { epoch: 2 }), "fit knows the options epochs", "epoch", "Correct"],
  ["numbers", (t) => t.fit(X, [0], { epochs: 0 }), "epochs must be", "0", "epochs: 1"],
  ["numbers", (t) => t.fit(X, [0], { sampleWeight: [1] }), "no weights of rows", "[1]", "Leave sampleWeight out"],
  ["numbers", (t) => t.fit([Array(6).fill(NaN)], [0]), "finite", "NaN in epoch 1", "Check the rows"],
  ["numbers", (t) => t.predict([Array(6).fill(null)]), "Predictions must be numbers", "NaN in row 0", "gaps"],
  ["numbers", (t) => t.setWeights([1]), "parameters", "1 numbers", "weights()"],
  ["numbers", async (t) => t.setWeights((await t.weights()).fill(NaN)), "finite", "NaN at 0", "Leave"],
  ["numbers", (t) => t.restore(bytes("none")), "file of save()", "bounds", "save()"],
  ["numbers", async (t) => t.restore(await (await load("table")).save()), "own bundle", "another 'parameters'", "Load"],
  ["numbers", (t) => t.save("mine"), "needs a browser", "IndexedDB", "bytes of save()"],
  ["numbers", async (t) => (await t.close(), t.predict(X)), "closed", "predict", "Load"],
  ["table", (t) => t.predict([["Oslo", 40]]), "need names", "Oslo", "city, age"],
  ["table", (t) => t.predict([row, { city: "Oslo" }]), "column 'age'", "none in row 1", "Found: city"],
  ["table", (t) => t.predict([{ ...row, age: "12 EUR" }]), "finite numbers", `"12 EUR" in column 'age', row 0`, "gap"],
  ["table", (t) => t.predict([{ ...row, city: new Date(0) }]), "text", "1970", "2026-01-31"],
  ["table", (t) => t.predict([{ ...row, vip: "yes" }]), "true or false", `"yes" in column 'vip', row 0`, "Write true"],
  ["table", (t) => t.predict([{ ...row, day: "31.1.2026" }]), "ISO 8601", `"31.1.2026" in column 'day'`, "2026-01-31"],
  ...["2026-02-29", "2026-03-11T99:99", "2026-03-11T05:60", "2026-03-11T05:00+24:00"].map((day) => [
    "table",
    (t) => t.predict([{ ...row, day }]),
    "ISO 8601",
    `"${day}" in column 'day'`,
    "2026-01-31",
  ]),
  [
    "table",
    (t) => t.predict({ city: ["Oslo"], age: [1, 2], vip: [true], day: [""] }),
    "value for each row",
    "1 in 'city', 2 in 'age'",
    "one length",
  ],
  ["table", (t) => t.fit([row], ["by"]), "classes of the model", `"by" in labels, row 0`, "buy, leave"],
];

for (const [name, call, rule, got, fix] of WRONG)
  test(`an error has a rule, the value and a fix: ${rule}, ${got}`, async () => {
    const trainer = await load(name);
    const before = await trainer.weights();
    await assert.rejects(call(trainer), (error) => {
      assert.equal(error.name, "TrainerError", error.stack);
      for (const [part, text] of [
        ["rule", rule],
        ["got", got],
        ["fix", fix],
      ])
        assert.ok(error[part].includes(text), `${part}: ${error[part]}`);
      return true;
    });
    assert.deepEqual(await trainer.weights(), before);
  });

test("a folder that is no whole bundle is rejected", async () => {
  const read = async (name) => readFile(join(BUNDLES, "numbers", name));
  const files = {};
  for (const name of ["bundle.json", "state.bin", "train.onnx", "predict.onnx", "validate.onnx"])
    files[name] = await read(name);
  const options = { runtime: RUNTIME };
  await Trainer.load(files, options);
  await Trainer.load(
    Object.entries(files).map(([name, content]) => new File([content], name)),
    options,
  );
  await assert.rejects(Trainer.load({ ...files, "predict.onnx": undefined }, options), /needs predict.onnx/);
  await assert.rejects(
    Trainer.load({ ...files, "state.bin": files["train.onnx"] }, options),
    /state.bin must be the file/,
  );
  await assert.rejects(Trainer.load({ ...files, "bundle.json": "<html>" }, options), /must describe a bundle/);
  const edited = (change) => ({ ...files, "bundle.json": JSON.stringify(change(JSON.parse(files["bundle.json"]))) });
  await Trainer.load(edited((bundle) => ({ ...bundle, state: { ...bundle.state, file: "../other" } })), options);
  const unlisted = edited((bundle) => ({ ...bundle, files: { ...bundle.files, "predict.onnx": undefined } }));
  await assert.rejects(Trainer.load(unlisted, options), /no digest of predict.onnx/);
  await assert.rejects(Trainer.load(join(BUNDLES, "none"), options), /needs bundle.json/);
  await assert.rejects(Trainer.load(join(BUNDLES, "numbers"), { runtime: "none" }), /needs onnxruntime/);
  await assert.rejects(Trainer.load(join(BUNDLES, "numbers"), { workers: true }), /load knows the options/);
});
