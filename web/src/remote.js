// A trainer in a worker, so that a page does not freeze while it trains.

import { TrainerError, closed, shown } from "./errors.js";
import { isNode, nodeModule } from "./bundle.js";

function started() {
  if (!isNode) return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const { Worker: Thread } = nodeModule("worker_threads");
  return new Thread(new URL("./worker.js", import.meta.url));
}

const absolute = (url) => (isNode || /^(blob|data):/.test(url) ? url : new URL(url, document.baseURI).href);

/** Return the URL of onnxruntime: a worker does not know the page's import map. */
function runtimeFor(runtime) {
  if (runtime !== undefined && typeof runtime !== "string") {
    const fix = 'Pass its URL or name, such as {runtime: "./ort.wasm.bundle.min.mjs"}, or {worker: false}.';
    throw new TrainerError("A worker imports onnxruntime itself.", "a module as runtime", fix);
  }
  if (isNode) return runtime;
  if (runtime && /^(\.{0,2}\/|[a-z]+:)/.test(runtime)) return absolute(runtime);
  try {
    return import.meta.resolve(runtime ?? "onnxruntime-web");
  } catch {
    return runtime; // a bundler resolves it in the worker
  }
}

function rebuilt({ name, message, rule, got, fix }) {
  return rule === undefined ? Object.assign(new Error(message), { name }) : new TrainerError(rule, got, fix);
}

export class Remote {
  #worker;
  #calls = new Map(); // number → how to settle a call
  #count = 0;
  #closed = false;

  static async load(source, options) {
    const runtime = runtimeFor(options.runtime);
    if (source instanceof URL) source = source.href;
    const place = typeof source === "string" ? absolute(source) : source?.[Symbol.iterator] ? [...source] : source;
    const remote = new Remote();
    remote.#worker = started();
    remote.#listen();
    try {
      remote.description = await remote.call("load", [place, { ...options, runtime }]);
    } catch (error) {
      remote.#worker.terminate();
      throw error;
    }
    return remote;
  }

  #listen() {
    const answered = ({ id, result, error, epoch }) => {
      const call = this.#calls.get(id);
      if (epoch) return call?.onEpoch?.(epoch);
      this.#calls.delete(id);
      if (!this.#calls.size) this.#worker.unref?.(); // Node may end
      return error ? call.reject(rebuilt(error)) : call.resolve(result);
    };
    const failed = (event) => {
      const fix = "Serve worker.js from the page's own origin, beside the other modules; or pass {worker: false}.";
      const error = new TrainerError("The trainer's worker must run.", shown(event?.message ?? "an error"), fix);
      for (const { reject } of this.#calls.values()) reject(error);
      this.#calls.clear();
      this.#closed = true; // later calls would wait forever
      this.#worker.terminate();
    };
    if (isNode) this.#worker.on("message", answered).on("error", failed);
    else [this.#worker.onmessage, this.#worker.onerror] = [({ data }) => answered(data), failed];
  }

  /** Return the result of a method in the worker. */
  call(method, values, onEpoch) {
    if (this.#closed) return Promise.reject(closed(method));
    const id = ++this.#count;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject, onEpoch });
      this.#worker.ref?.();
      try {
        this.#worker.postMessage({ id, method, values });
      } catch (error) {
        this.#calls.delete(id);
        const fix = "Pass plain arrays, objects and numbers.";
        reject(new TrainerError("Values for a worker must be plain data.", error.message, fix));
      }
    });
  }

  async fit(rows, labels, { onEpoch, signal, ...options } = {}) {
    signal?.throwIfAborted();
    const id = this.#count + 1;
    const abort = () => this.#worker.postMessage({ abort: id });
    let problem;
    const reported = (epoch) => {
      try {
        if (!problem) onEpoch?.(epoch);
      } catch (error) {
        problem = { error };
        abort();
      }
    };
    signal?.addEventListener("abort", abort);
    try {
      const result = await this.call("fit", [rows, labels, options], reported);
      if (problem) throw problem.error;
      return result;
    } catch (error) {
      if (problem) throw problem.error;
      throw error.name === "AbortError" && signal?.aborted ? signal.reason : error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  async close() {
    if (this.#closed) return;
    await this.call("close", []);
    this.#closed = true;
    await this.#worker.terminate();
  }
}

for (const method of ["predict", "evaluate", "save", "restore", "forget", "reset", "weights", "setWeights", "model"])
  Remote.prototype[method] = function (...values) {
    return this.call(method, values);
  };
