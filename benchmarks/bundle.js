// Train bundles by the package in web/: losses of the first steps, and µs per step; in a page, or by
//     node benchmarks/bundle.js FOLDER EPOCHS ROUNDS RUNTIME NAMES
// `benchmarks.bundle` writes the folder.

const here = (path) => new URL(path, import.meta.url).href;
const isNode = typeof process !== "undefined";
const { Trainer } = await import(here(isNode ? "../web/src/index.js" : "/web/src/index.js"));

/** Return losses of some epochs, and the least time of a step, of a bundle. */
async function measured(folder, { rows, labels }, epochs, rounds, options) {
  const trainer = await Trainer.load(folder, options);
  const losses = [];
  await trainer.fit(rows, labels, { epochs, onEpoch: ({ stepLosses }) => losses.push(...stepLosses) });
  const times = [];
  for (let round = 0; round < rounds; round++) {
    const started = performance.now();
    await trainer.fit(rows, labels, { epochs });
    times.push((1000 * (performance.now() - started)) / losses.length);
  }
  await trainer.close();
  return { losses, us: Math.min(...times) };
}

/** Return the results of bundles by name; `read` returns the rows of one. */
export async function measure(folder, read, names, epochs, rounds, options) {
  const results = {};
  for (const name of names) results[name] = await measured(`${folder}/${name}`, await read(name), epochs, rounds, options);
  return results;
}

if (isNode) {
  const { readFile } = await import("node:fs/promises");
  const [folder, epochs, rounds, runtime, names] = process.argv.slice(2);
  const read = async (name) => JSON.parse(await readFile(`${folder}/${name}.json`, "utf8"));
  const results = await measure(folder, read, names.split(","), Number(epochs), Number(rounds), { runtime });
  console.log(JSON.stringify({ version: process.version, results }));
}
