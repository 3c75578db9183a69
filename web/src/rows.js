// Rows and labels, as a page has them, as the inputs of a bundle's graphs.

import { TrainerError, shown } from "./errors.js";
import { typeOf } from "./bundle.js";

const isList = (value) => Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
const isTable = (value) => value !== null && typeof value === "object" && !isList(value);
const product = (sizes) => sizes.reduce((a, b) => a * b, 1);
const listed = (names) => (names.length > 12 ? [...names.slice(0, 12), "..."] : names).join(", ");
const isGap = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);

/** Return the inputs of features, of labels, and of the weight of each row. */
export function inputsOf({ graphs, rows, weights, sample_weight }) {
  const features = graphs.predict.inputs.filter(({ name }) => !weights.includes(name));
  const others = graphs.step.inputs.filter(({ name }) => rows.includes(name) && !features.some((f) => f.name === name));
  return {
    features,
    labels: others.filter(({ name }) => name !== sample_weight),
    weight: others.find(({ name }) => name === sample_weight),
  };
}

// Each value of a row by dtype; gaps are NaN in floats and empty text in words.

/** Return a value as it is, or as the decimal number that its text is; null for a gap, NaN for other text. */
export function number(value) {
  const text = typeof value === "string" ? value.trim() : value;
  if (isGap(text)) return null;
  if (typeof text === "string") return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) ? Number(text) : NaN;
  return typeof value === "boolean" ? Number(value) : value;
}

function float(value, where, slot) {
  const found = number(value);
  if (found === null) return NaN;
  slot[0] = typeof found === "number" ? found : NaN;
  if (Number.isFinite(slot[0])) return found;
  const fix = "Write a finite number; a gap is null, NaN or empty.";
  throw new TrainerError("Inputs of numbers must be finite numbers.", `${shown(value)} in ${where()}`, fix);
}

/** Return a whole number that the array of its dtype holds as it is. */
function whole(value, where, slot) {
  const found = number(value);
  const isBig = slot instanceof BigInt64Array;
  if (typeof found === "bigint" || Number.isSafeInteger(found)) {
    slot[0] = isBig ? BigInt(found) : Number(found);
    if (BigInt(slot[0]) === BigInt(found)) return slot[0];
  }
  const rule = `This input needs whole numbers of ${isBig ? 64 : 8 * slot.BYTES_PER_ELEMENT} bits.`;
  throw new TrainerError(rule, `${shown(value)} in ${where()}`, "Write numbers such as 3.");
}

function bool(value, where) {
  const found = { true: 1, false: 0 }[`${value}`.toLowerCase()] ?? number(value);
  if (found === 0 || found === 1) return found;
  throw new TrainerError("This input needs true or false.", `${shown(value)} in ${where()}`, "Write true or false.");
}

function word(value, where) {
  if (isGap(value)) return "";
  if (["string", "number", "bigint", "boolean"].includes(typeof value)) return String(value);
  const fix = "Write text; dates as 2026-01-31.";
  throw new TrainerError("Inputs of words must be text, numbers or booleans.", `${shown(value)} in ${where()}`, fix);
}

const MINUTES = "([01]\\d|2[0-3]):[0-5]\\d";
const ZONE = "(Z|[+-]([01]\\d|2[0-3]):?[0-5]\\d)";
const DATE = new RegExp(`^(\\d{4}-\\d\\d-\\d\\d)([T ]${MINUTES}(:[0-5]\\d(\\.\\d+)?)?${ZONE}?)?$`);

/** Return whether a text is a date of ISO 8601, with a time or without. */
export function isDate(text) {
  const day = text.match(DATE)?.[1];
  const moment = new Date(`${day}T00:00Z`);
  return !Number.isNaN(moment.getTime()) && moment.toISOString().startsWith(day);
}

function date(value, where) {
  const text = word(value, where);
  if (!text || isDate(text)) return text;
  throw new TrainerError(
    "Dates must be of ISO 8601.",
    `${shown(value)} in ${where()}`,
    "Write 2026-01-31, or 2026-01-31T05:00.",
  );
}

function truth(value, where) {
  const text = word(value, where).toLowerCase();
  if (["", "true", "false"].includes(text)) return text;
  throw new TrainerError(
    "Truth values must be true or false.",
    `${shown(value)} in ${where()}`,
    "Write true or false.",
  );
}

function converter(dtype) {
  if (dtype === "string") return word;
  if (dtype === "bool") return bool;
  const [slot, convert] = [new (typeOf(dtype))(1), dtype.startsWith("float") ? float : whole];
  return (value, where) => convert(value, where, slot);
}

/** Return nested or flat values as one array [count, …shape]. */
function flat(values, { name, dtype, shape: [, ...sizes] }, convert, title = `'${name}'`) {
  const free = sizes.some((size) => typeof size !== "number" || size === 0);
  const single = product(sizes) === 1;
  const wanted = single ? "one value for each row" : `rows of shape [${sizes.map((size) => size || "any").join(", ")}]`;
  const fix = single ? "Pass a list of values." : "Pass one list of values for each row, all of one shape.";
  const reject = (got) => {
    throw new TrainerError(`${title[0].toUpperCase()}${title.slice(1)} must have ${wanted}.`, got, fix);
  };
  if (!isList(values)) reject(shown(values));
  const isFlat = ArrayBuffer.isView(values);
  const first = values[0];
  let shape = sizes;
  if (free) {
    if (isFlat || !isList(first)) reject(isFlat ? shown(values) : shown(first));
    shape = [];
    for (let part = first; isList(part); part = part[0]) shape.push(part.length);
    if (shape.length !== sizes.length || sizes.some((s, axis) => typeof s === "number" && s !== 0 && s !== shape[axis]))
      reject(`[${shape.join(", ")}] in row 0`);
  }
  const size = product(shape);
  if (isFlat && values.length % size) reject(`${values.length} numbers, which are no rows of ${size}`);
  const count = isFlat ? values.length / size : values.length;
  const data = dtype === "string" ? new Array(count * size) : new (typeOf(dtype, name))(count * size);
  let row = 0;
  const where = () => `${title}, row ${row}`;
  if (isFlat) {
    for (let place = 0; place < values.length; place++) {
      row = Math.floor(place / size);
      data[place] = convert(values[place], where);
    }
    return { count, shape, data };
  }
  const fill = (part, axis, start, step) => {
    if (axis === shape.length) data[start] = convert(part, where);
    else {
      if (!isList(part) || part.length !== shape[axis])
        reject(`${isList(part) ? `${part.length} values` : shown(part)} in row ${row}`);
      const inner = step / shape[axis];
      for (let place = 0; place < part.length; place++) fill(part[place], axis + 1, start + place * inner, inner);
    }
  };
  for (; row < count; row++) {
    const part = values[row];
    // One number is a row of size one, and a flat list of numbers a picture.
    if (size === 1 && !isList(part)) data[row] = convert(part, where);
    else if (shape.length > 1 && isList(part) && part.length === size && !isList(part[0])) {
      for (let place = 0; place < size; place++) data[row * size + place] = convert(part[place], where);
    } else fill(part, 0, row * size, size);
  }
  return { count, shape, data };
}

/** Return a function that gives the values of a column. */
function columnsOf(rows) {
  if (isTable(rows)) {
    return (name) => {
      if (!(name in rows)) missing(name, Object.keys(rows));
      return rows[name];
    };
  }
  return (name) =>
    rows.map((row, number) => {
      if (!isTable(row)) missing(name, [], `${shown(row)} in row ${number}`);
      if (!(name in row)) missing(name, Object.keys(row), `none in row ${number}`);
      return row[name];
    });
}

function missing(name, found, got = "none") {
  const fix = `Name it as in training, with null for a gap. Found: ${listed(found) || "nothing"}.`;
  throw new TrainerError(`Rows need the column '${name}'.`, got, fix);
}

/** Return the inputs of features by name, and the number of rows. */
export function encodeRows(description, rows) {
  const { features } = inputsOf(description);
  const asTable = isTable(rows) || (Array.isArray(rows) && isTable(rows[0]));
  if (!asTable && features.length > 1) {
    const names = listed(features.map(({ name }) => name));
    throw new TrainerError("Rows of several inputs need names.", shown(rows), `Pass a list of objects with ${names}.`);
  }
  const column = asTable && columnsOf(rows);
  const arrays = {};
  for (const info of features)
    arrays[info.name] = asTable ? named(description, info, column, rows) : flat(rows, info, converter(info.dtype));
  return { arrays, count: sameCount(arrays) };
}

function named(description, info, column, rows) {
  const columns = description.columns[info.name];
  const convert = { date, truth }[description.table[info.name]?.kind] ?? converter(info.dtype);
  if (!columns || info.name in (Array.isArray(rows) ? rows[0] : rows))
    return flat(column(info.name), info, convert, `column '${info.name}'`);
  const parts = columns.map((name) => flat(column(name), { ...info, shape: ["N"] }, convert, `column '${name}'`));
  const count = sameCount(Object.fromEntries(columns.map((name, place) => [name, parts[place]])));
  const data = new (typeOf(info.dtype, info.name))(count * columns.length);
  parts.forEach((part, place) => part.data.forEach((value, row) => (data[row * columns.length + place] = value)));
  return { count, shape: [columns.length], data };
}

function sameCount(arrays) {
  const counts = Object.entries(arrays).map(([name, { count }]) => [name, count]);
  const [[first, count]] = counts;
  const other = counts.find(([, number]) => number !== count);
  if (other) {
    const got = `${count} in '${first}', ${other[1]} in '${other[0]}'`;
    throw new TrainerError("All columns need a value for each row.", got, "Pass columns of one length.");
  }
  if (!count) throw new TrainerError("There must be at least one row.", "none", "Pass more rows.");
  return count;
}

/** Return a function that converts a label of a prediction: a class to its place, or a number. */
function labelOf(prediction, info) {
  const convert = converter(info.dtype);
  if (!prediction?.classes || prediction.task === "multilabel") {
    return (value, where) => {
      if (number(value) !== null) return convert(value, where);
      const fix = "Leave out rows without a label.";
      throw new TrainerError("Labels must be numbers.", `${shown(value)} in ${where()}`, fix);
    };
  }
  const { classes, padding } = prediction;
  const places = new Map(classes.map((name, place) => [String(name), place]));
  if (padding !== null && !places.has(String(padding))) places.set(String(padding), padding);
  return (value, where) => {
    const place =
      places.get(String(value)) ?? (typeof value === "boolean" ? places.get(`${Number(value)}`) : undefined);
    if (place !== undefined) return convert(place, where);
    const fix = `Choose among: ${listed(classes)}.`;
    throw new TrainerError("Labels must be classes of the model.", `${shown(value)} in ${where()}`, fix);
  };
}

/** Return a function that converts the weight of a row. */
function weightOf(info) {
  const convert = converter(info.dtype);
  return (value, where) => {
    if (number(value) >= 0 && number(value) !== null) return convert(value, where);
    const fix = "Write 1 for a row without a weight.";
    throw new TrainerError("Weights of rows must be numbers from 0 on.", `${shown(value)} in ${where()}`, fix);
  };
}

/** Return the inputs of labels and, if the model has them, of weights by name. */
export function encodeLabels(description, labels, sampleWeight, count) {
  const inputs = inputsOf(description);
  const heads = description.predictions;
  const several = inputs.labels.length > 1;
  if (several && !isTable(labels)) {
    const names = inputs.labels.map(({ name }) => heads.find(({ label }) => label === name)?.head || name).join(", ");
    throw new TrainerError("A model of several heads needs labels by name.", shown(labels), `Pass {${names}}.`);
  }
  const arrays = {};
  for (const info of inputs.labels) {
    const prediction = heads.find(({ label }) => label === info.name);
    const values = !several ? labels : (labels[info.name] ?? labels[prediction?.head]);
    arrays[info.name] = flat(values, info, labelOf(prediction, info), several ? `labels '${info.name}'` : "labels");
  }
  if (inputs.weight) {
    const values = sampleWeight ?? new Float32Array(count * product(inputs.weight.shape.slice(1))).fill(1);
    arrays[inputs.weight.name] = flat(values, inputs.weight, weightOf(inputs.weight), "sampleWeight");
  } else if (sampleWeight !== undefined) {
    const fix = "Leave sampleWeight out, or export a run with data.source.weight.";
    throw new TrainerError("This bundle has no weights of rows.", shown(sampleWeight), fix);
  }
  for (const [name, part] of Object.entries(arrays)) {
    if (part.count === count) continue;
    const got = `${count} rows, ${part.count} labels`;
    throw new TrainerError(
      "Each row needs one label.",
      name === inputs.weight?.name ? `${got} of '${name}'` : got,
      "Pass lists of one length.",
    );
  }
  return arrays;
}

/** Return rows of encoded arrays, in an order, as data and shape: [batches, size, …], or [size, …] without batches. */
export function taken({ shape, data }, numbers, sizes) {
  const size = product(shape);
  const out = new data.constructor(numbers.length * size);
  if (size === 1) for (let place = 0; place < numbers.length; place++) out[place] = data[numbers[place]];
  else if (ArrayBuffer.isView(data))
    numbers.forEach((number, place) => out.set(data.subarray(number * size, (number + 1) * size), place * size));
  else
    numbers.forEach((number, place) =>
      data.slice(number * size, (number + 1) * size).forEach((v, i) => (out[place * size + i] = v)),
    );
  return { data: out, shape: [...sizes, ...shape] };
}
