import { Trainer } from "./trainer/index.js";

/** What the page keeps: corrections, which train together with the replay rows, so that the rest is not forgotten. */
const [MOST, LEAST] = [40, 10]; // epochs
const SURE = 0.8; // the probability of a correction's class
export const ENOUGH = 0.95; // the share of corrections that have it
const PART = 8; // one row in PART corrects
const RUNTIME = new URL("onnxruntime/ort.wasm.bundle.min.mjs", import.meta.url).href;

export class Learner {
  static async open(facts, rows) {
    const trainer = await Trainer.load(new URL(".", import.meta.url).href, { runtime: RUNTIME });
    const [{ classes, task }] = trainer.description.predictions;
    return new Learner(trainer, { ...facts, classes, task }, rows);
  }

  constructor(trainer, facts, rows) {
    Object.assign(this, { trainer, facts, rows, taught: { inputs: {}, labels: [] } });
    const { files } = trainer.description;
    this.key = `ortpipe ${files["train.onnx"]} ${files["state.bin"]}`;
  }

  /** Return whether an earlier visit's weights and corrections are back; not where storage is blocked. */
  async restore() {
    try {
      const back = await this.trainer.restore(this.key);
      const kept = back && localStorage.getItem(this.key);
      if (kept) this.taught = JSON.parse(kept);
      return back;
    } catch {
      return false;
    }
  }

  /** Keep weights and corrections in the browser; return a sentence about it. */
  async keep() {
    try {
      await this.trainer.save(this.key);
      localStorage.removeItem(this.key);
    } catch {
      return "This browser blocks storage: download the model before you leave.";
    }
    try {
      localStorage.setItem(this.key, JSON.stringify(this.taught));
      return "Your corrections stay in this browser.";
    } catch {
      return "The model stays in this browser; its rows are too many to stay.";
    }
  }

  async forget() {
    this.taught = { inputs: {}, labels: [] };
    await this.trainer.reset();
    try {
      localStorage.removeItem(this.key);
      await this.trainer.forget(this.key);
    } catch {} // nothing is stored where storage is blocked
  }

  /** Return the label of each row, the probability of it and those of all classes; of numbers, the value alone. */
  async predict(inputs) {
    const { labels, probabilities, values } = await this.trainer.predict(inputs);
    if (values) return Array.from(values, (value) => ({ label: value, score: null, scores: null }));
    return labels.map((label, row) => ({ label, score: Math.max(...probabilities[row]), scores: [...probabilities[row]] }));
  }

  /** Return the share of labels that are right; of numbers, the mean absolute error. */
  async check({ inputs, labels }) {
    const predicted = await this.predict(inputs);
    const wrong = (label, row) => (this.facts.classes ? label === labels[row] : Math.abs(label - labels[row]));
    return predicted.reduce((sum, { label }, row) => sum + wrong(label, row), 0) / labels.length;
  }

  /** Train on rows, the earlier corrections and the replay rows until the corrections are right, or for MOST epochs. */
  async teach(inputs, labels, { onEpoch, signal }) {
    await this.predict(inputs); // rejects rows by their own numbers
    const taught = join([this.taught, { inputs, labels }]);
    const { replay } = this.rows;
    const copies = Math.max(1, Math.ceil(replay.labels.length / (PART - 1) / taught.labels.length));
    const all = join([replay, ...Array(copies).fill(taught)]);
    for (let epoch = 1; epoch <= MOST; epoch++) {
      await this.trainer.fit(all.inputs, all.labels, { shuffle: this.facts.shuffle, signal, onEpoch });
      this.taught = taught; // not before: rejected rows would make each later training fail
      if (epoch >= LEAST && (await this.known())) return;
    }
  }

  /** Return the two labels of a row that was taught twice, if they differ: no training learns both. */
  contradiction() {
    const { inputs, labels } = this.taught;
    const taught = new Map();
    for (const [row, label] of labels.entries()) {
      const values = JSON.stringify(Object.values(inputs).map((column) => column[row]));
      if (taught.has(values) && taught.get(values) !== label) return [taught.get(values), label];
      taught.set(values, label);
    }
    return null;
  }

  /** Return whether enough corrections are right, with enough probability. */
  async known() {
    if (!this.facts.classes) return false;
    const { labels } = this.taught;
    const predicted = await this.predict(this.taught.inputs);
    const right = predicted.filter(({ label, score }, row) => label === labels[row] && score >= SURE);
    return right.length >= ENOUGH * labels.length;
  }
}

/** Return rows of several parts as one. */
function join(parts) {
  const names = Object.keys(parts.at(-1).inputs);
  const inputs = Object.fromEntries(names.map((name) => [name, parts.flatMap((part) => part.inputs[name] ?? [])]));
  return { inputs, labels: parts.flatMap((part) => part.labels) };
}
