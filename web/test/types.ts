// Checked by tsc, never run.
import { Trainer, TrainerError, order } from "ortpipe";
import type { Prediction } from "ortpipe";

const trainer = await Trainer.load("bundle/", { worker: false, threads: 1 });
await Trainer.load({ "bundle.json": "{}", "state.bin": new Uint8Array(8) });
const { losses } = await trainer.fit(
  [
    { age: 3, city: "Oslo" },
    { age: null, city: "" },
  ],
  ["buy", "leave"],
  {
    epochs: 2,
    onEpoch: ({ epoch, loss, stepLosses }) => console.log(epoch + 1, loss.toFixed(3), stepLosses.length),
    signal: new AbortController().signal,
  },
);
losses[0].toFixed();
await trainer.fit(new Float32Array(64), [7]);
await trainer.fit({ age: [1, 2], city: ["Oslo", null] }, [0, 1]);
const prediction: Prediction = await trainer.predict([[1, 2]]);
const first: number | undefined = prediction.probabilities?.[0]?.[0];
const blob = new Blob([await trainer.save("name")]);
const back: boolean = await trainer.restore(blob);
const weights: Float32Array | Float64Array = await trainer.weights();
await trainer.setWeights(weights.map((weight) => 0.5 * weight));
const rule = (error: unknown) => (error instanceof TrainerError ? error.rule : "");
console.log(order(5, 0, 1)[0], first, back, rule);
// @ts-expect-error: a misspelt option
await trainer.fit([[1]], [0], { epoch: 2 });
