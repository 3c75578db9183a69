// The files that a trainer writes: its state as safetensors, and a model of its own.

import { TrainerError } from "./errors.js";
import { unpacked } from "./bundle.js";

const DTYPES = {
  float32: "F32",
  float64: "F64",
  float16: "F16",
  int64: "I64",
  int32: "I32",
  int8: "I8",
  uint8: "U8",
  bool: "BOOL",
};
const NAMES = Object.fromEntries(Object.entries(DTYPES).map(([name, code]) => [code, name]));
const CODES = { float32: 1, uint8: 2, int8: 3, int32: 6, int64: 7, bool: 9, float16: 10, float64: 11 }; // of ONNX

const bytes = (data) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    whole.set(part, offset);
    offset += part.length;
  }
  return whole;
}

/** Return arrays and text as a file of safetensors. */
export function packed(arrays, metadata) {
  const header = { __metadata__: metadata };
  let offset = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(arrays)) {
    header[name] = { dtype: DTYPES[dtype], shape, data_offsets: [offset, (offset += data.byteLength)] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(text.length / 8) * 8;
  const start = new Uint8Array(8 + length).fill(32);
  new DataView(start.buffer).setBigUint64(0, BigInt(length), true);
  start.set(text, 8);
  return joined([start, ...Object.values(arrays).map(({ data }) => bytes(data))]);
}

/** Return the arrays and the text of a file of safetensors. */
export function opened(content) {
  try {
    const length = Number(new DataView(content.buffer, content.byteOffset).getBigUint64(0, true));
    const { __metadata__: metadata = {}, ...entries } = JSON.parse(
      new TextDecoder().decode(content.subarray(8, 8 + length)),
    );
    const tensors = Object.entries(entries).map(
      ([
        name,
        {
          dtype,
          shape,
          data_offsets: [offset],
        },
      ]) => ({
        name,
        dtype: NAMES[dtype],
        shape,
        offset: 8 + length + offset,
      }),
    );
    return { metadata, arrays: unpacked(tensors, content) };
  } catch (error) {
    throw new TrainerError(
      "A saved state must be a file of save().",
      error.message,
      "Pass the bytes that save() returned.",
    );
  }
}

function varint(number) {
  const out = [];
  for (; number > 127; number = Math.floor(number / 128)) out.push((number % 128) | 128);
  return Uint8Array.from([...out, number]);
}

/** Return a field of a protobuf message: bytes, or a number. */
const field = (number, value) =>
  typeof value === "number"
    ? joined([varint(number * 8), varint(value)])
    : joined([varint(number * 8 + 2), varint(value.length), value]);

/** Return the fields of a protobuf message: their numbers, places and bytes. */
function fields(message) {
  const found = [];
  let place = 0;
  const read = () => {
    let [number, scale] = [0, 1];
    for (;;) {
      const byte = message[place++];
      number += (byte % 128) * scale;
      if (byte < 128) return number;
      scale *= 128;
    }
  };
  while (place < message.length) {
    const start = place;
    const key = read();
    const length = [() => (read(), 0), () => 8, read, , , () => 4][key % 8]();
    found.push({
      number: Math.floor(key / 8),
      whole: message.subarray(start, place + length),
      value: message.subarray(place, place + length),
    });
    place += length;
  }
  return found;
}

/**
 * Return an .onnx file with values in place of some inputs.
 *
 * ModelProto.graph is field 7, GraphProto.initializer 5 and input 11, ValueInfoProto.name 1, and of TensorProto dims 1,
 * data_type 2, name 8 and raw_data 9.
 */
export function withWeights(model, arrays) {
  const initializers = Object.entries(arrays).map(([name, { dtype, shape, data }]) => {
    const parts = [...shape.map((size) => field(1, size)), field(2, CODES[dtype])];
    return field(5, joined([...parts, field(8, new TextEncoder().encode(name)), field(9, bytes(data))]));
  });
  const nameOf = (info) => new TextDecoder().decode(fields(info).find(({ number }) => number === 1).value);
  const kept = (part) => part.number !== 11 || !(nameOf(part.value) in arrays);
  const parts = fields(model).map(({ number, whole, value }) => {
    if (number !== 7) return whole;
    return field(
      7,
      joined([
        ...fields(value)
          .filter(kept)
          .map((part) => part.whole),
        ...initializers,
      ]),
    );
  });
  return joined(parts);
}
