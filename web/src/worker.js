// The other end of remote.js: a trainer in a Web Worker, or in a worker thread of Node.

import { isNode, nodeModule } from "./bundle.js";
import { Engine } from "./engine.js";

let engine;
const running = new Map(); // the number of a call → its AbortController

async function called(post, { id, method, values, abort }) {
  if (abort !== undefined) return running.get(abort)?.abort();
  try {
    if (method === "load") {
      engine = await Engine.load(...values);
      post({ id, result: engine.description });
    } else if (method === "fit") {
      const [rows, labels, options] = values;
      running.set(id, new AbortController());
      const onEpoch = (epoch) => post({ id, epoch });
      post({ id, result: await engine.fit(rows, labels, { ...options, onEpoch, signal: running.get(id).signal }) });
    } else post({ id, result: await engine[method](...values) });
  } catch (error) {
    const { name, message, rule, got, fix } = error;
    post({ id, error: { name, message, rule, got, fix } });
  } finally {
    running.delete(id);
  }
}

if (isNode) {
  const { parentPort } = nodeModule("worker_threads");
  parentPort.on("message", (message) => called((answer) => parentPort.postMessage(answer), message));
} else self.onmessage = ({ data }) => called((answer) => self.postMessage(answer), data);
