/** Train and use models of `ortpipe export` in a browser or Node. */

export type Value = number | bigint | boolean | string | null;
export type NumberArray =
  Float32Array | Float64Array | Int32Array | BigInt64Array | Uint8Array | Int8Array | Uint8ClampedArray;
/** Values of one input: one number or nested list for each row, or all numbers in one typed array. */
export type Values = readonly unknown[] | NumberArray;
/**
 * Rows of a model: values of its only input; or by the names of columns or inputs, as a list of objects or as an object
 * of lists. A gap is null, NaN or empty; dates are text, as 2026-01-31.
 */
export type Rows = Values | readonly Readonly<Record<string, unknown>>[] | Readonly<Record<string, Values>>;
/** One class, number or list of numbers for each row; of several heads, by head. */
export type Labels = Values | Readonly<Record<string, Values>>;

export interface LoadOptions {
  /** Train in a worker; default: in browsers, yes; in Node, no. */
  worker?: boolean;
  /** onnxruntime: the name or URL of its module, or without a worker the module; default: onnxruntime-node or -web. */
  runtime?: string | object;
  /** Threads of onnxruntime; default 1, which gives the same numbers each time. */
  threads?: number;
  /** Options of onnxruntime's sessions, such as {executionProviders: ["webgpu"]}. */
  session?: Record<string, unknown>;
  /** Train by train.onnx, many steps in one call (default), or by step.onnx, one step in one call. */
  graph?: "train" | "step";
}

export interface Epoch {
  /** Counted from 1 on, over all fits. */
  epoch: number;
  /** The mean loss of its rows. */
  loss: number;
  /** The loss of each step: the mean of its batch, or the sum if the run had add_loss.reduction=sum. */
  stepLosses: Float32Array;
}

export interface FitOptions {
  /** Passes over the rows; default 1. */
  epochs?: number;
  /** Rows of a step; default: batch_size of bundle.json. */
  batchSize?: number;
  /** The seed of the order of rows, which is NumPy's; default: seed of bundle.json. */
  seed?: number;
  /** Whether each epoch has an order of its own; default true. */
  shuffle?: boolean;
  /** The weight of each row, if the bundle has such an input; default 1. */
  sampleWeight?: Values;
  /** Called after each epoch. */
  onEpoch?: (epoch: Epoch) => void;
  /** Ends the fit; the trainer keeps the state after its last whole epoch. */
  signal?: AbortSignal;
}

export interface Output {
  data: NumberArray | string[];
  shape: number[];
}

export interface Prediction {
  /** The most probable class of each row; of several labels, a list of 0 and 1. */
  labels?: Value[] | number[][];
  /** The probability of each class, for each row. */
  probabilities?: Float32Array[];
  /** Predicted values, if the model has no classes; several of a row are an array. */
  values?: Float32Array | Float32Array[];
  /** All outputs of predict.onnx by name. */
  outputs: Record<string, Output>;
}

export interface Evaluation {
  /** The mean loss of the rows. */
  loss: number;
  /** The share of rows whose most probable class is the label. */
  accuracy?: number;
}

export type Source = string | URL | Iterable<File> | Readonly<Record<string, Blob | ArrayBuffer | Uint8Array | string>>;

export class Trainer {
  private constructor();
  /** Load a bundle from a URL, from its files by name, or in Node from its folder. */
  static load(source: Source, options?: LoadOptions): Promise<Trainer>;
  /** The content of bundle.json. */
  readonly description: Record<string, any>;
  /** Train; resolves to the mean loss of each epoch. */
  fit(rows: Rows, labels: Labels, options?: FitOptions): Promise<{ losses: number[] }>;
  predict(rows: Rows): Promise<Prediction>;
  evaluate(rows: Rows, labels: Labels, options?: Pick<FitOptions, "sampleWeight">): Promise<Evaluation>;
  /** Return the state as a .safetensors file; with a name, keep it in the browser's database, too. */
  save(name?: string): Promise<Uint8Array<ArrayBuffer>>;
  /** Continue from a state: its name in the browser's database, or its bytes. Resolves to whether there is one. */
  restore(saved: string | Blob | ArrayBuffer | Uint8Array): Promise<boolean>;
  /** Remove a state from the browser's database. */
  forget(name: string): Promise<void>;
  /** Return to the state of the bundle. */
  reset(): Promise<void>;
  /** Return the trained parameters as one vector, float64 if the model is; `parameters` of bundle.json has its parts. */
  weights(): Promise<Float32Array | Float64Array>;
  /** Set the trained parameters; the optimizer's own state stays. */
  setWeights(vector: ArrayLike<number>): Promise<void>;
  /** Return an .onnx file with the weights of now, which predicts in any onnxruntime. */
  model(): Promise<Uint8Array<ArrayBuffer>>;
  /** End the worker and free onnxruntime's memory. */
  close(): Promise<void>;
}

/** Bad input: the rule, the actual value and a fix. */
export class TrainerError extends Error {
  readonly rule: string;
  readonly got: string;
  readonly fix: string;
}

/** Return the row numbers of an epoch: NumPy's default_rng([seed, epoch]).permutation(count). */
export function order(count: number, seed: number, epoch: number): Uint32Array;
