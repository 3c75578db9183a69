// Train bundles by the package in web/: losses of the first steps, and µs per step; in a page, or by
//     node benchmarks/bundle.js FOLDER EPOCHS MORE RUNTIME NAMES
// `benchmarks.bundle` writes the folder.

const here = (path) => new URL(path, import.meta.url).href;
const isNode = typeof process !== "undefined";
const { Trainer } = await import(here(isNode ? "../web/src/index.js" : "/web/src/index.js"));

/** Return losses of some epochs, in a page from a worker, and the time of a step in the fastest of more epochs. */
async function measured(folder, { rows, labels }, epochs, more, options) {
  const [trainer, timed] = [
    await Trainer.load(folder, options),
    await Trainer.load(folder, { ...options, worker: false }),
  ];
  const [losses, times] = [[], []];
  await trainer.fit(rows, labels, { epochs, onEpoch: ({ stepLosses }) => losses.push(...stepLosses) });
  await timed.fit(rows, labels, { epochs: more, onEpoch: () => times.push(performance.now()) });
  await Promise.all([trainer.close(), timed.close()]);
  const least = Math.min(...times.slice(1).map((time, place) => time - times[place]));
  return { losses, us: (1000 * least * epochs) / losses.length };
}

/** Return the results of bundles by name; `read` returns the rows of one. */
export async function measure(folder, read, names, epochs, more, options) {
  const results = {};
  for (const name of names)
    results[name] = await measured(`${folder}/${name}`, await read(name), epochs, more, options);
  return results;
}

if (isNode) {
  const { readFile } = await import("node:fs/promises");
  const [folder, epochs, more, runtime, names] = process.argv.slice(2);
  const read = async (name) => JSON.parse(await readFile(`${folder}/${name}.json`, "utf8"));
  const results = await measure(folder, read, names.split(","), Number(epochs), Number(more), { runtime });
  console.log(JSON.stringify({ version: process.version, results }));
}
