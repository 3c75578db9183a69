// States in the browser's database.

import { TrainerError } from "./errors.js";

const STORE = "states";

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function store(mode) {
  if (!globalThis.indexedDB) {
    const fix = "Write the bytes of save() to a file, and pass the bytes of that file to restore().";
    throw new TrainerError("Saving by name needs a browser.", "no IndexedDB", fix);
  }
  const opening = indexedDB.open("ortpipe", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await done(opening);
  return [database, database.transaction(STORE, mode).objectStore(STORE)];
}

async function use(mode, work) {
  const [database, objects] = await store(mode);
  try {
    const result = await done(work(objects));
    if (mode === "readwrite")
      await new Promise((resolve, reject) => {
        objects.transaction.oncomplete = resolve;
        objects.transaction.onabort = objects.transaction.onerror = () => reject(objects.transaction.error);
      });
    return result;
  } finally {
    database.close();
  }
}

export const put = (name, content) => use("readwrite", (objects) => objects.put(content, name));
export const get = (name) => use("readonly", (objects) => objects.get(name));
export const remove = (name) => use("readwrite", (objects) => objects.delete(name));
