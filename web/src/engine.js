// Trains and predicts in this thread.

import { TrainerError, closed, shown } from "./errors.js";
import { bytesOf, isNode, readBundle } from "./bundle.js";
import { order } from "./order.js";
import { encodeLabels, encodeRows, taken } from "./rows.js";
import { opened, packed, withWeights } from "./saved.js";
import * as store from "./store.js";

const CHUNK_BYTES = 8 * 2 ** 20; // rows that one call trains on
const CHUNK_TIME = 50; // milliseconds that one call should take: between calls a page draws, and signals count
const now = () => performance.now();

/** Return onnxruntime: a module, or what a specifier or URL imports; by default that of Node, or of the web. */
async function runtimeOf(runtime) {
  if (runtime && typeof runtime !== "string") return runtime;
  const named = (name) => () => import(/* @vite-ignore */ name);
  const web = () => import("onnxruntime-web"); // in this form, for bundlers
  let problem;
  for (const load of runtime ? [named(runtime)] : isNode ? [named("onnxruntime-node"), web] : [web]) {
    try {
      const module = await load();
      return module.InferenceSession ? module : module.default;
    } catch (error) {
      problem ??= error;
    }
  }
  const fix = isNode
    ? "Run `npm install onnxruntime-node`, or onnxruntime-web."
    : 'Add onnxruntime-web to the import map, or pass {runtime: "https://…/ort.wasm.bundle.min.mjs"}.';
  throw new TrainerError("A trainer needs onnxruntime.", problem.message, fix);
}

function positive(value, name, fallback) {
  const number = value ?? fallback;
  if (Number.isSafeInteger(number) && number > 0) return number;
  throw new TrainerError(
    `${name} must be a whole number of at least 1.`,
    shown(value),
    `Leave ${name} out, or write ${name}: ${fallback}.`,
  );
}

function known(options, names, method) {
  const unknown = Object.keys(options).find((name) => !names.includes(name));
  if (unknown) throw new TrainerError(`${method} knows the options ${names.join(", ")}.`, unknown, "Correct the name.");
}

export class Engine {
  #ort;
  #bundle;
  #settings;
  #sessions = {};
  #state; // name → tensor, as the graphs carry it
  #done = { steps: 0, epochs: 0 };
  #lock = Promise.resolve(); // one call of onnxruntime at a time
  #busy = ""; // the method that changes the state right now
  #most = Infinity; // batches in one call
  #closed = false;
  #paused = 0; // when this thread last had time for others

  static async load(source, { runtime, threads, session, graph } = {}) {
    if (graph !== undefined && !["train", "step"].includes(graph))
      throw new TrainerError("graph must be train or step.", shown(graph), 'Write graph: "step" where Scan is slow.');
    const engine = new Engine();
    const count = positive(threads, "threads", 1);
    engine.#ort = await runtimeOf(runtime);
    if (engine.#ort.env?.wasm) engine.#ort.env.wasm.numThreads = count;
    engine.#settings = { graph: graph ?? "train", session: { intraOpNumThreads: count, ...session } };
    engine.#bundle = await readBundle(source, [engine.#settings.graph, "predict", "validate"]);
    engine.#state = engine.#first();
    return engine;
  }

  get description() {
    return this.#bundle.description;
  }

  /** Train; the state changes after each whole epoch, so that a fit that ends early can be repeated. */
  async fit(rows, labels, options = {}) {
    known(options, ["epochs", "batchSize", "seed", "shuffle", "sampleWeight", "onEpoch", "signal"], "fit");
    const epochs = positive(options.epochs, "epochs", 1);
    const batchSize = positive(options.batchSize, "batchSize", this.description.batch_size);
    const seed = options.seed ?? this.description.seed ?? 0;
    if (!Number.isSafeInteger(seed) || seed < 0)
      throw new TrainerError("seed must be a whole number from 0 on.", shown(seed), "Write seed: 0.");
    const { arrays, count } = encodeRows(this.description, rows);
    Object.assign(arrays, encodeLabels(this.description, labels, options.sampleWeight, count));
    return this.#changing("fit", async () => {
      const losses = [];
      for (let number = 0; number < epochs; number++) {
        const numbers =
          options.shuffle === false
            ? Uint32Array.from({ length: count }, (_, row) => row)
            : order(count, seed, this.#done.epochs + 1);
        const stepLosses = await this.#epoch(arrays, numbers, Math.min(batchSize, count), options.signal);
        const size = Math.min(batchSize, count);
        const rowsOf = (step) => (this.description.reduction === "sum" ? 1 : Math.min(size, count - step * size));
        const total = stepLosses.reduce((sum, loss, step) => sum + loss * rowsOf(step), 0);
        losses.push(total / count);
        options.onEpoch?.({ epoch: this.#done.epochs, loss: total / count, stepLosses });
      }
      return { losses };
    });
  }

  async #epoch(arrays, numbers, size, signal) {
    const { scalars } = this.description;
    const losses = new Float32Array(Math.ceil(numbers.length / size));
    const rowBytes = Object.values(arrays).reduce(
      (sum, { data }) => sum + (data.byteLength ?? 8 * data.length) / numbers.length,
      0,
    );
    let [state, step] = [this.#state, 0];
    while (step < losses.length) {
      signal?.throwIfAborted();
      const whole = Math.max(
        1,
        Math.min(Math.floor(numbers.length / size) - step, this.#most, Math.floor(CHUNK_BYTES / (rowBytes * size))),
      );
      const batches = this.#settings.graph === "step" ? 1 : whole;
      const chunk = numbers.subarray(step * size, (step + batches) * size);
      const rows = Math.min(size, chunk.length);
      const sizes = this.#settings.graph === "step" ? [rows] : [batches, rows];
      const feeds = { ...state };
      for (const [name, array] of Object.entries(arrays)) feeds[name] = this.#tensor(name, taken(array, chunk, sizes));
      for (const name of scalars) feeds[name] = this.#scalar(name, this.#done.steps + step, batches);
      const started = now();
      const results = await this.#run(this.#settings.graph, feeds);
      this.#most = Math.max(1, Math.round((batches * CHUNK_TIME) / Math.max(1, now() - started)));
      const next = Object.fromEntries(this.description.carried.map((name, place) => [name, results[place]]));
      state = next;
      const found = results.at(-1);
      losses.set(Float32Array.from(found.data), step);
      const bad = losses.subarray(step, step + batches).findIndex((loss) => !Number.isFinite(loss));
      step += batches;
      if (bad >= 0) {
        const fix = "Check the rows, gaps above all; or export the bundle with a lower train.optimizer.lr.";
        throw new TrainerError(
          "Losses must be finite.",
          `${losses[step - batches + bad]} in epoch ${this.#done.epochs + 1}`,
          fix,
        );
      }
      await this.#pause();
    }
    this.#state = state;
    this.#done = { steps: this.#done.steps + step, epochs: this.#done.epochs + 1 };
    return losses;
  }

  /** Return the optimizer's numbers of some steps; after the last one, the last one. */
  #scalar(name, first, count) {
    const { data } = this.#bundle.arrays[`scalars/${name}`];
    const values = new data.constructor(count);
    for (let step = 0; step < count; step++) values[step] = data[Math.min(first + step, data.length - 1)];
    return this.#tensor(name, { data: values, shape: this.#settings.graph === "step" ? [] : [count] });
  }

  #info(name) {
    return this.description.graphs.step.inputs.find((input) => input.name === name);
  }

  #tensor(name, { data, shape }) {
    return new this.#ort.Tensor(this.#info(name).dtype, data, shape);
  }

  #first() {
    return this.#tensors(this.#bundle.arrays);
  }

  #tensors(arrays) {
    return Object.fromEntries(
      this.description.carried.map((name) => [
        name,
        this.#tensor(name, { ...arrays[name], data: arrays[name].data.slice() }),
      ]),
    );
  }

  /** Return the outputs of a graph in their order. */
  async #run(graph, feeds) {
    const before = this.#lock;
    let release;
    this.#lock = new Promise((resolve) => (release = resolve));
    await before;
    try {
      if (this.#closed) throw closed(graph);
      this.#sessions[graph] ??= await this.#ort.InferenceSession.create(
        this.#bundle.graphs[graph],
        this.#settings.session,
      );
      const outputs = this.description.graphs[graph].outputs.map(({ name }) => name);
      const results = await this.#sessions[graph].run(feeds, outputs);
      return outputs.map((name) => results[name]);
    } finally {
      release();
    }
  }

  /** Let the thread draw, and receive signals, if it had no time for long. */
  async #pause() {
    if (now() - this.#paused < CHUNK_TIME) return;
    await new Promise((resolve) => setTimeout(resolve));
    this.#paused = now();
  }

  /** Change the state, alone. */
  async #changing(method, work) {
    if (this.#busy) {
      const fix = "Await that call first, or end a fit by its signal.";
      throw new TrainerError("One call at a time changes a trainer.", `${method} during ${this.#busy}`, fix);
    }
    this.#busy = method;
    try {
      return await work();
    } finally {
      this.#busy = "";
    }
  }

  /** Return the outputs of a graph with a state on some of the rows. */
  #outputs(graph, arrays, numbers, state) {
    const feeds = Object.fromEntries(this.description.weights.map((name) => [name, state[name]]));
    for (const [name, array] of Object.entries(arrays))
      feeds[name] = this.#tensor(name, taken(array, numbers, [numbers.length]));
    return this.#run(graph, feeds);
  }

  /** Run a graph with a state on the rows in parts; return the outputs of each part, with its number of rows. */
  async #parts(graph, arrays, count, state) {
    const bytes = Object.values(arrays).reduce(
      (sum, { data }) => sum + (data.byteLength ?? 8 * data.length) / count,
      0,
    );
    const size = Math.max(1, Math.min(1024, Math.floor(CHUNK_BYTES / bytes)));
    const parts = [];
    for (let first = 0; first < count; first += size) {
      const numbers = Uint32Array.from({ length: Math.min(size, count - first) }, (_, place) => first + place);
      parts.push({ rows: numbers.length, results: await this.#outputs(graph, arrays, numbers, state) });
      await this.#pause();
    }
    return parts;
  }

  /** Return the outputs of predict.onnx, and labels and probabilities of the first prediction. */
  async predict(rows) {
    return this.#predicted(encodeRows(this.description, rows), this.#state);
  }

  async #predicted({ arrays, count }, state) {
    const parts = await this.#parts("predict", arrays, count, state);
    const outputs = {};
    this.description.graphs.predict.outputs.forEach(({ name }, place) => {
      const tensors = parts.map(({ results }) => results[place]);
      outputs[name] = {
        data: concatenated(tensors.map(({ data }) => data)),
        shape: [count, ...tensors[0].dims.slice(1)],
      };
    });
    const [prediction] = this.description.predictions;
    const scores = outputs[prediction.output];
    if (ArrayBuffer.isView(scores.data)) {
      const bad = scores.data.findIndex((value) => Number.isNaN(value));
      if (bad >= 0) {
        const row = Math.floor((bad * count) / scores.data.length);
        throw new TrainerError("Predictions must be numbers.", `NaN in row ${row}`, "Fill the gaps of that row.");
      }
    }
    return { ...answer(prediction, scores, count), outputs };
  }

  /** Return the mean loss of rows and, of classes, the accuracy. */
  async evaluate(rows, labels, options = {}) {
    known(options, ["sampleWeight"], "evaluate");
    const { arrays, count } = encodeRows(this.description, rows);
    const encoded = encodeLabels(this.description, labels, options.sampleWeight, count);
    const state = this.#state; // of now: a fit may go on meanwhile
    const parts = await this.#parts("validate", { ...arrays, ...encoded }, count, state);
    const isSum = this.description.reduction === "sum";
    const penalty = isSum && parts.length > 1 ? await this.#penalty({ ...arrays, ...encoded }, state) : 0;
    const total = parts.reduce(
      (sum, { rows: number, results: [loss] }) => sum + (isSum ? loss.data[0] - penalty : loss.data[0] * number),
      penalty, // counts once, regardless of the parts
    );
    const result = { loss: total / count };
    const [{ classes, label }] = this.description.predictions;
    if (!classes || encoded[label]?.data.length !== count) return result;
    const { labels: predicted } = await this.#predicted({ arrays, count }, state);
    if (!predicted) return result;
    const hits = predicted.filter((name, row) => name === classes[Number(encoded[label].data[row])]);
    result.accuracy = hits.length / count;
    return result;
  }

  /** Return the part of a summed loss that is of no row: f(A) + f(B) − f(A ∪ B) for the rows A and B. */
  async #penalty(arrays, state) {
    const losses = [];
    for (const numbers of [[0], [1], [0, 1]])
      losses.push((await this.#outputs("validate", arrays, numbers, state))[0].data[0]);
    return losses[0] + losses[1] - losses[2];
  }

  #arrays(names) {
    const array = (name) => ({
      dtype: this.#info(name).dtype,
      shape: [...this.#state[name].dims],
      data: this.#state[name].data,
    });
    return Object.fromEntries(names.map((name) => [name, array(name)]));
  }

  /** Return the state as the bytes of a .safetensors file; with a name, keep it in the browser's database, too. */
  async save(name) {
    const { carried, files } = this.description;
    const { steps, epochs } = this.#done;
    const metadata = { bundle: files["train.onnx"], steps: `${steps}`, epochs: `${epochs}` };
    const content = packed(this.#arrays(carried), metadata);
    if (name !== undefined) await store.put(name, content);
    return content;
  }

  /** Continue from a state: its name in the browser's database, or its bytes. Return whether there is one. */
  async restore(saved) {
    return this.#changing("restore", async () => {
      const content = typeof saved === "string" ? await store.get(saved) : await bytesOf(saved, "A saved state");
      if (content === undefined) return false;
      const { metadata, arrays } = opened(content);
      const { carried, files } = this.description;
      const wrong = carried.find((name) => {
        const { dtype, shape } = this.#info(name);
        return arrays[name]?.dtype !== dtype || `${arrays[name].shape}` !== `${shape}`;
      });
      if (wrong || metadata.bundle !== files["train.onnx"]) {
        const got = wrong ? `another '${wrong}'` : `train.onnx of SHA-256 ${shown(metadata.bundle)}`;
        throw new TrainerError(
          "A saved state belongs to its own bundle.",
          got,
          "Load the bundle that it was saved from.",
        );
      }
      this.#replace(this.#tensors(arrays), { steps: Number(metadata.steps), epochs: Number(metadata.epochs) });
      return true;
    });
  }

  /** Remove a state from the browser's database. */
  async forget(name) {
    await store.remove(name);
  }

  /** Return to the state of the bundle. */
  async reset() {
    return this.#changing("reset", async () => this.#replace(this.#first(), { steps: 0, epochs: 0 }));
  }

  #replace(state, done) {
    [this.#state, this.#done] = [state, done];
  }

  /** Return a copy of the trained parameters as one vector. */
  async weights() {
    return this.#state[this.description.carried[0]].data.slice();
  }

  /** Set the trained parameters, and their average if there is one; slots of the optimizer stay. */
  async setWeights(vector) {
    return this.#changing("setWeights", async () => {
      const { carried, weights } = this.description;
      const { data } = this.#state[carried[0]];
      if (!(Array.isArray(vector) || ArrayBuffer.isView(vector)) || vector.length !== data.length) {
        const got = vector?.length === undefined ? shown(vector) : `${vector.length} numbers`;
        throw new TrainerError(
          `This model has ${data.length} parameters.`,
          got,
          "Pass the vector of weights() of the same bundle.",
        );
      }
      const bad = vector.findIndex((value) => !Number.isFinite(value));
      if (bad >= 0)
        throw new TrainerError(
          "Weights must be finite numbers.",
          `${shown(vector[bad])} at ${bad}`,
          "Leave that vector out.",
        );
      const state = { ...this.#state };
      for (const name of new Set([carried[0], weights[0]]))
        state[name] = this.#tensor(name, { data: data.constructor.from(vector), shape: [data.length] });
      this.#replace(state, this.#done);
    });
  }

  /** Return predict.onnx with the weights of now, as the bytes of an .onnx file that predicts on its own. */
  async model() {
    return withWeights(this.#bundle.graphs.predict, this.#arrays(this.description.weights));
  }

  /** Free onnxruntime's memory. */
  async close() {
    this.#closed = true;
    await this.#lock;
    for (const session of Object.values(this.#sessions)) await session.release?.();
    this.#sessions = {};
  }
}

function concatenated(parts) {
  if (parts.length === 1) return parts[0];
  if (Array.isArray(parts[0])) return parts.flat();
  const whole = new parts[0].constructor(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((offset, part) => (whole.set(part, offset), offset + part.length), 0);
  return whole;
}

/** Return labels and probabilities of classes, or values. */
function answer({ task, classes, scores, class_axis: axis, link }, { data, shape }, count) {
  if (link === "log") data = data.map((value) => Math.exp(Math.max(-700, Math.min(value, 700))));
  const size = data.length / count;
  const rows = Array.from({ length: count }, (_, row) => data.subarray(row * size, (row + 1) * size));
  if (!classes && task !== "multilabel") return { values: size === 1 ? data : rows };
  if (
    shape.length > 2 ||
    (shape.length === 2 && axis !== null && axis !== undefined && axis !== shape.length - 1 && axis !== -1)
  )
    return {};
  const isLogits = scores === "logits";
  const sigmoid = (z) => (isLogits ? 1 / (1 + Math.exp(-z)) : z);
  if (task === "multilabel") {
    const probabilities = rows.map((row) => row.map(sigmoid));
    return { labels: probabilities.map((row) => Array.from(row, (p) => Number(p > 0.5))), probabilities };
  }
  const probabilities = rows.map((row) => {
    if (size === 1) return Float32Array.of(1 - sigmoid(row[0]), sigmoid(row[0]));
    if (!isLogits) return row;
    const most = row.reduce((a, b) => Math.max(a, b));
    const powers = row.map((z) => Math.exp(z - most));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  });
  const labels = probabilities.map((row) => classes[row.reduce((best, p, place) => (p > row[best] ? place : best), 0)]);
  return { labels, probabilities };
}
