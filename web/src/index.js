/** Train and use models of `ortpipe export` in a browser or Node. */

import { isNode } from "./bundle.js";
import { Engine } from "./engine.js";
import { TrainerError } from "./errors.js";
import { Remote } from "./remote.js";

export { TrainerError } from "./errors.js";
export { order } from "./order.js";

const OPTIONS = ["worker", "runtime", "threads", "session", "graph"];

export class Trainer {
  #engine;
  #description;

  constructor(engine, description) {
    [this.#engine, this.#description] = [engine, description];
  }

  /** Load a bundle from a URL, from its files by name, or in Node from its folder. */
  static async load(source, options = {}) {
    const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
    if (unknown) throw new TrainerError(`load knows the options ${OPTIONS.join(", ")}.`, unknown, "Correct the name.");
    const { worker = !isNode && typeof Worker !== "undefined", ...others } = options;
    const engine = await (worker ? Remote : Engine).load(source, others);
    return new Trainer(engine, engine.description);
  }

  /** The content of bundle.json. */
  get description() {
    return this.#description;
  }

  fit(rows, labels, options) {
    return this.#engine.fit(rows, labels, options);
  }
  predict(rows) {
    return this.#engine.predict(rows);
  }
  evaluate(rows, labels, options) {
    return this.#engine.evaluate(rows, labels, options);
  }
  save(name) {
    return this.#engine.save(name);
  }
  restore(saved) {
    return this.#engine.restore(saved);
  }
  forget(name) {
    return this.#engine.forget(name);
  }
  reset() {
    return this.#engine.reset();
  }
  weights() {
    return this.#engine.weights();
  }
  setWeights(vector) {
    return this.#engine.setWeights(vector);
  }
  model() {
    return this.#engine.model();
  }
  close() {
    return this.#engine.close();
  }
}
