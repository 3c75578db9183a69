import { download, element } from "./dom.js";
import { parse, toCsv } from "./csv.js";
import { isDate, number } from "./trainer/rows.js";

const SHOWN = 20; // rows of a table that are shown
const MOST = 3.4e38; // of float32

/** A form made from the columns of a table, and a field for rows as CSV. */
export class Table {
  constructor(place, facts, first, { onChange, onRows, onTeach }) {
    Object.assign(this, { facts, onChange, onRows, onTeach, fields: {} });
    const form = element("form", { class: "form", onsubmit: (event) => event.preventDefault(), oninput: () => this.changed() });
    for (const column of facts.columns) form.append(element("label", {}, column.name, this.field(column, first(column))));
    this.text = element("textarea", {
      id: "csv", spellcheck: "false", "aria-describedby": "csv-help",
      placeholder: [facts.columns.map((column) => column.name).join(","), "…"].join("\n"),
    });
    const file = element("input", { type: "file", accept: ".csv,text/csv", onchange: (event) => this.open(event.target.files[0]) });
    this.drop = element("div", { class: "drop" },
      element("label", { for: "csv" }, "Rows as CSV"), this.text,
      element("small", { id: "csv-help" }, `Paste or drop rows with a line of column names. For training, add the column ${facts.label}. Numbers have a decimal point, dates are 2026-01-31, a gap is empty.`),
      element("p", { class: "row" },
        element("button", { type: "button", id: "predict-rows", onclick: () => this.run(this.onRows) }, "Predict these rows"),
        element("button", { type: "button", id: "train-rows", onclick: () => this.run(this.onTeach, true) }, "Train on these rows"),
        element("label", { class: "button quiet" }, "Open a file", file)));
    this.result = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Predicted rows", "aria-live": "polite" });
    place.append(form, element("p"), this.drop, this.result);
    this.listen();
  }

  field(column, value) {
    const shared = { name: column.name, id: `column-${column.name}` };
    if (column.kind === "number") {
      const [least, most] = column.range;
      this.fields[column.name] = element("input", { ...shared, type: "number", step: "any", min: -MOST, max: MOST, placeholder: `${least} to ${most}`, value });
    } else if (column.kind === "date") {
      this.fields[column.name] = element("input", { ...shared, type: /[T ]/.test(value ?? "") ? "datetime-local" : "date", value });
    } else if (column.kind === "text") {
      this.fields[column.name] = element("input", { ...shared, type: "text", value });
    } else {
      const options = ["", ...column.words].map((word) => element("option", { value: word, selected: word === (value ?? "") }, word || "(none)"));
      this.fields[column.name] = element("select", shared, ...options);
    }
    return this.fields[column.name];
  }

  listen() {
    const over = (on) => (event) => {
      event.preventDefault();
      this.drop.classList.toggle("over", on);
    };
    this.drop.addEventListener("dragover", over(true));
    this.drop.addEventListener("dragleave", over(false));
    this.drop.addEventListener("drop", (event) => {
      over(false)(event);
      this.open(event.dataTransfer.files[0]);
    });
  }

  async open(file) {
    if (file) this.text.value = await file.text();
  }

  changed() {
    const invalid = Object.values(this.fields).find((field) => !field.validity.valid);
    return this.onChange(invalid ? null : this.row());
  }

  /** Return the form's row by column. */
  row() {
    return Object.fromEntries(this.facts.columns.map((column) => [column.name, readCell(column, this.fields[column.name].value, "")]));
  }

  run(then, labelled = false) {
    this.result.replaceChildren();
    then(() => this.rows(labelled));
  }

  /** Return the rows of the text, by column, and their labels; raise if a column or a value does not fit. */
  rows(labelled) {
    const { columns, label: labelName, classes } = this.facts;
    const [header, ...lines] = parse(this.text.value);
    if (!lines.length) throw new Error("There must be a line of column names and at least one row.\nFound: " + (header ? "only one line" : "no text") + "\nFix: paste rows as CSV.");
    const needed = [...columns.map((column) => column.name), ...(labelled ? [labelName] : [])];
    const missing = needed.filter((name) => !header.includes(name));
    if (missing.length) throw new Error(`The first line must name all columns.\nFound: no ${missing.join(", no ")}\nFix: add ${missing.length > 1 ? "these columns" : "this column"}.`);
    const cells = (name) => lines.map((line) => line[header.indexOf(name)]);
    const inputs = Object.fromEntries(columns.map((column) => [column.name, cells(column.name).map((cell, row) => readCell(column, cell, ` in row ${row + 1}`))]));
    return { inputs, labels: labelled ? cells(labelName).map((cell, row) => readLabel(cell, classes, `Each cell of ${labelName}`, ` in row ${row + 1}`)) : null };
  }

  /** Show predicted rows, and offer all of them as a file. */
  show(inputs, predictions) {
    const names = ["prediction", ...(predictions[0].score === null ? [] : ["probability"]), ...this.facts.columns.map((column) => column.name)];
    const lines = predictions.map(({ label, score }, row) =>
      [score === null ? shortest(label) : label, ...(score === null ? [] : [+score.toPrecision(4)]), ...this.facts.columns.map((column) => inputs[column.name][row])]);
    const cells = (tag, line) => element("tr", {}, ...line.map((cell) => element(tag, tag === "th" ? { scope: "col" } : {}, String(cell ?? ""))));
    this.result.replaceChildren(
      element("table", {}, element("caption", {}, `${lines.length} ${lines.length === 1 ? "row" : "rows"} predicted`), element("thead", {}, cells("th", names)), element("tbody", {}, ...lines.slice(0, SHOWN).map((line) => cells("td", line)))),
      element("p", { class: "row" }, element("button", { type: "button", class: "quiet", onclick: () => download("predicted.csv", toCsv([names, ...lines]), "text/csv") }, "Download predicted.csv")));
  }
}

/** Return the shortest number that is the same float32. */
const shortest = (value) => [6, 7, 8].map((digits) => +value.toPrecision(digits)).find((short) => Math.fround(short) === value) ?? value;

/** Return a cell as the model reads it: numbers, or text; null or "" if missing. */
function readCell(column, cell, where) {
  const text = (cell ?? "").trim();
  const wrong = (rule, fix) => new Error(`Column ${column.name} must hold ${rule}.\nFound: ${text}${where}\nFix: ${fix}`);
  if (column.kind === "number") {
    const found = number(text);
    if (Number.isNaN(found)) throw wrong("numbers", "write it as 1234.5.");
    if (Math.abs(found) > MOST) throw wrong(`numbers from ${-MOST} to ${MOST}`, "correct it, or leave it empty.");
    return found;
  }
  if (column.kind === "date" && text !== "" && !isDate(text)) throw wrong("dates", "write it as 2026-01-31.");
  if (column.kind !== "truth" || text === "") return text;
  const truth = { true: "true", yes: "true", 1: "true", false: "false", no: "false", 0: "false" }[text.toLowerCase()];
  if (truth === undefined) throw wrong("true or false", "write true, false, yes or no.");
  return truth;
}

export function readLabel(text, classes, name, where = "") {
  const found = classes ? classes.find((each) => String(each) === text.trim()) : (number(text) ?? undefined);
  if (found === undefined || Number.isNaN(found)) throw new Error(`${name} must be ${classes ? `one of ${classes.slice(0, 20).join(", ")}` : "a number"}.\nFound: ${text.trim() || "a gap"}${where}\nFix: ${where ? "correct or remove this row" : "enter it, such as 1234.5"}.`);
  return found;
}
