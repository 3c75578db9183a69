// Where the files of a bundle come from, and what they hold.

import { TrainerError, shown } from "./errors.js";

const TYPES = {
  float32: Float32Array,
  float64: Float64Array,
  float16: globalThis.Float16Array, // not in Node 20
  int64: BigInt64Array,
  int32: Int32Array,
  int8: Int8Array,
  uint8: Uint8Array,
  bool: Uint8Array,
  string: Array,
};

export const isNode = typeof process !== "undefined" && Boolean(process.versions?.node);

/** Return a module of Node; bundlers for browsers must not see an import. */
export const nodeModule = (name) => process.getBuiltinModule(`node:${name}`);

/** Return the class of an array of a dtype. */
export function typeOf(dtype, name) {
  if (TYPES[dtype]) return TYPES[dtype];
  throw new TrainerError("This package knows the dtypes of bundles.", `${dtype} of ${name}`, "Use a newer package.");
}

/** Return bytes of a Blob, File, ArrayBuffer, array of bytes or text. */
export async function bytesOf(value, name) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (typeof value?.arrayBuffer === "function") return new Uint8Array(await value.arrayBuffer());
  throw new TrainerError(`${name} must be bytes.`, shown(value), "Pass a File, Blob, ArrayBuffer or Uint8Array.");
}

/** Return a function that reads a file of a bundle by its name. */
function reader(source) {
  if (source instanceof URL) source = source.href;
  if (typeof source === "string") {
    const isRemote = /^(https?|blob|data):/.test(source);
    if (isNode && !isRemote) return fromFolder(source);
    const base = new URL(source.endsWith("/") ? source : `${source}/`, globalThis.location?.href);
    return async (name) => {
      const response = await fetch(new URL(name, base));
      if (!response.ok) throw new Error(`HTTP ${response.status} ${response.statusText}`);
      return new Uint8Array(await response.arrayBuffer());
    };
  }
  if (source === null || typeof source !== "object")
    throw new TrainerError(
      "A bundle is a URL, a folder or its files.",
      shown(source),
      'Write Trainer.load("bundle/").',
    );
  const files =
    typeof source[Symbol.iterator] === "function"
      ? Object.fromEntries([...source].map((file) => [file?.name, file]))
      : source;
  return async (name) => {
    if (files[name] === undefined) throw new Error(`not among ${Object.keys(files).join(", ") || "no files"}`);
    return bytesOf(files[name], name);
  };
}

function fromFolder(source) {
  const [{ readFile }, { join }, { fileURLToPath }] = ["fs/promises", "path", "url"].map(nodeModule);
  const folder = source.startsWith("file:") ? fileURLToPath(source) : source;
  return async (name) => new Uint8Array(await readFile(join(folder, name)));
}

/**
 * Read a bundle.
 *
 * @returns its description, the arrays of state.bin by name, and the bytes of its graphs by name.
 */
export async function readBundle(source, graphs) {
  const read = reader(source);
  const file = async (name) => {
    try {
      return await read(name);
    } catch (error) {
      if (error instanceof TrainerError) throw error;
      const fix = "Pass the folder that `ortpipe export RUN --output FOLDER` wrote, with all its files.";
      throw new TrainerError(`A bundle needs ${name}.`, error.message, fix);
    }
  };
  const names = ["state.bin", ...graphs.map((graph) => `${graph}.onnx`)];
  const description = parsed(await file("bundle.json"), names);
  const contents = await Promise.all(names.map(file));
  await Promise.all(names.map((name, place) => checkDigest(name, contents[place], description.files[name])));
  const entries = graphs.map((graph, place) => [graph, contents[place + 1]]);
  return { description, arrays: unpacked(description.state.tensors, contents[0]), graphs: Object.fromEntries(entries) };
}

function parsed(bytes, names) {
  const rule = "bundle.json must describe a bundle.";
  const fix = "Pass the folder that `ortpipe export RUN --output FOLDER` wrote.";
  let description;
  try {
    description = JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new TrainerError(rule, error.message, fix);
  }
  if (description?.format !== 1)
    throw new TrainerError(rule, `format ${shown(description?.format)}, while this package reads 1`, fix);
  const missing = names.find((name) => typeof description.files?.[name] !== "string");
  if (missing) throw new TrainerError(rule, `no digest of ${missing}`, fix);
  return description;
}

async function checkDigest(name, content, expected) {
  if (!globalThis.crypto?.subtle) return; // pages from plain http:// have no digests, except on localhost
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  const found = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== expected)
    throw new TrainerError(`${name} must be the file of this bundle.`, `SHA-256 ${found}`, "Export the bundle again.");
}

/** Return the float32 numbers of float16 bits: sign, 5 bits of exponent, 10 of fraction. */
function halves(bits) {
  return Float32Array.from(bits, (half) => {
    const [exponent, fraction] = [(half >> 10) & 31, half & 1023];
    const size =
      exponent === 0
        ? fraction * 2 ** -24
        : exponent < 31
          ? (1 + fraction / 1024) * 2 ** (exponent - 15)
          : fraction
            ? NaN
            : Infinity;
    return half & 32768 ? -size : size;
  });
}

/** Return the arrays of a packed file by name; `tensors` lists their dtypes, shapes and offsets. float16 becomes float32. */
export function unpacked(tensors, content) {
  const arrays = {};
  for (const { name, dtype, shape, offset } of tensors) {
    const type = dtype === "float16" ? Uint16Array : typeOf(dtype, name);
    const size = shape.reduce((a, b) => a * b, 1) * type.BYTES_PER_ELEMENT;
    if (offset + size > content.byteLength)
      throw new TrainerError("The file of the state must be whole.", `${content.byteLength} bytes`, "Write it again.");
    const data = new type(content.slice(offset, offset + size).buffer); // a copy: offsets need not be aligned
    arrays[name] = dtype === "float16" ? { dtype: "float32", shape, data: halves(data) } : { dtype, shape, data };
  }
  return arrays;
}
