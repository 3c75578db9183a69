/** An error with the rule, the actual value and a fix. */
export class TrainerError extends Error {
  constructor(rule, got, fix) {
    super(`${rule}\n  got: ${got}\n  fix: ${fix}`);
    Object.assign(this, { name: "TrainerError", rule, got, fix });
  }
}

/** Return a value as an error shows it: text in quotes, short. */
export function shown(value) {
  if (typeof value === "bigint") return `${value}`;
  if (value === undefined || typeof value === "number") return String(value);
  if (ArrayBuffer.isView(value)) return `${value.constructor.name} of ${value.length}`;
  let text;
  try {
    text = JSON.stringify(value) ?? String(value);
  } catch {
    text = String(value);
  }
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}

/** Return the error of a call after close(). */
export const closed = (method) =>
  new TrainerError("A closed trainer cannot be used.", method, "Load the bundle again.");
