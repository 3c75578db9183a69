// Runs as trainer.test.js does; in a process of its own, whose memory is measured.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import { Trainer } from "../src/index.js";

const { BUNDLES, RUNTIME } = process.env;

test("a thousand epochs do not take more memory", async () => {
  const trainer = await Trainer.load(join(BUNDLES, "numbers"), { runtime: RUNTIME });
  const { rows, labels } = JSON.parse(await readFile(join(BUNDLES, "numbers.json"), "utf8"));
  const used = async (epochs) => {
    await trainer.fit(rows.X, labels, { epochs });
    await trainer.predict(rows.X);
    globalThis.gc();
    return process.memoryUsage().rss / 2 ** 20;
  };
  const first = await used(500);
  const last = await used(1000);
  assert.ok(last - first < 16, `${last - first} MiB more`);
});
