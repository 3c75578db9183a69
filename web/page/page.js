import { Curve } from "./curve.js";
import { at, download, element, percent } from "./dom.js";
import { Drawing, paint } from "./draw.js";
import { ENOUGH, Learner } from "./learn.js";
import { Sound } from "./sound.js";
import { readLabel, Table } from "./table.js";

const [BUTTONS, SHOWN] = [12, 10]; // classes as buttons, and with a bar
const RUNTIME = ["ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"].map((name) => `onnxruntime/${name}`);
const TRAINING = "#labels button, #train-rows, #train-sound, #reset"; // what starts or undoes a training
let facts, learner, curve, panel, running, latest = null, predicting = false, checked, before;

async function file(name, method = "GET") {
  const response = await fetch(name, { method });
  if (response.ok) return response;
  throw new Error(`The page needs ${name}.\nFound: HTTP ${response.status} ${response.statusText}\nFix: serve all files of the folder.`);
}

async function start() {
  const [page, rows] = await Promise.all(["page.json", "rows.json"].map(async (name) => (await file(name)).json()));
  await Promise.all(RUNTIME.map((name) => file(name, "HEAD"))); // without them, the trainer names import maps
  learner = await Learner.open(page, rows);
  ({ facts } = learner);
  at("title").textContent = document.title = page.title;
  curve = new Curve(at("curve"));
  panel = { picture: pictures, table: tables, sound: sounds }[page.kind]();
  labels();
  checked = rows.check ?? rows.replay;
  before = await learner.check(checked);
  const back = await learner.restore();
  for (const id of ["download", "reset"]) at(id).disabled = false; // also where the stored corrections do not fit
  at("stop").onclick = () => running?.abort();
  at("download").onclick = () => guarded(async () => download("model.onnx", await learner.trainer.model(), "application/octet-stream"));
  at("reset").onclick = () => guarded(forget);
  await panel.changed?.();
  await guarded(() => afterwards(back ? "Your trained model is back." : "Ready."));
  document.body.dataset.ready = "true";
}

/** Run work of the page; an error becomes a notice. */
async function guarded(work) {
  at("problem").hidden = true;
  try {
    await work();
  } catch (error) {
    notice(error);
  }
}

/** Show an error at the bottom of the window, clear of the control that caused it. */
function notice(error) {
  const close = () => (at("problem").hidden = true);
  at("problem").replaceChildren(error.message, element("button", { type: "button", class: "quiet", onclick: close }, "Close"));
  at("problem").hidden = false;
  document.documentElement.style.scrollPaddingBottom = `${at("problem").offsetHeight + 32}px`;
  document.activeElement.scrollIntoView({ block: "nearest" });
}

function pictures() {
  at("input-title").textContent = "Draw";
  return new Drawing(at("input"), facts, { onChange: (row) => predict(row && { [facts.input]: [row] }), onProblem: notice });
}

function tables() {
  at("input-title").textContent = "A row";
  at("input").classList.add("wide");
  const { replay } = learner.rows;
  const first = ({ input, place }) => (place === null ? replay.inputs[input][0] : replay.inputs[input][0][place]);
  const table = new Table(at("input"), facts, first, {
    onChange: (row) => predict(row && inputsOf(facts.columns.map(({ name }) => [name, [row[name]]]))),
    onRows: (rows) => guarded(async () => {
      const { inputs } = rows();
      table.show(inputs, await learner.predict(inputsOf(Object.entries(inputs))));
    }),
    onTeach: (rows) => guarded(async () => {
      const { inputs, labels } = rows();
      await teach(inputsOf(Object.entries(inputs)), labels);
    }),
  });
  return table;
}

/** Return the model's inputs from columns: each its own, or places of a matrix. */
function inputsOf(entries) {
  const inputs = {}, columns = Object.fromEntries(entries);
  for (const { name, input, place } of facts.columns) {
    if (place === null) inputs[input] = columns[name];
    else columns[name].forEach((value, row) => (((inputs[input] ??= [])[row] ??= [])[place] = value));
  }
  return inputs;
}

function sounds() {
  at("input-title").textContent = "A recording";
  at("input").classList.add("wide");
  at("answer").hidden = true;
  let windows = null;
  const show = async (fresh) => windows && panel.show(await learner.predict({ [facts.input]: windows }), fresh);
  const sound = new Sound(at("input"), facts, {
    onSound: (rows) => guarded(() => ((windows = rows), show(true))),
    onTeach: (rows, marked) => guarded(async () => {
      await teach({ [facts.input]: rows }, marked);
      await show(false);
    }),
    onProblem: notice,
  });
  return sound;
}

/** Predict a row and show the scores; of rows that come while the model predicts, only the latest counts. */
async function predict(inputs) {
  latest = inputs;
  at("teach").hidden = inputs === null;
  if (!inputs) {
    at("verdict").textContent = "–";
    return at("scores").replaceChildren();
  }
  if (predicting) return;
  predicting = true;
  await guarded(async () => {
    for (let done = null; latest && latest !== done; ) {
      done = latest;
      const [prediction] = await learner.predict(done);
      if (latest) show(prediction);
    }
  });
  predicting = false;
}

function show({ label, score, scores }) {
  at("verdict").textContent = scores ? `${label} (${percent(score)})` : `${facts.label}: ${+Number(label).toPrecision(6)}`;
  if (!scores) return;
  const order = facts.classes.length > SHOWN ? [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, SHOWN) : [...scores.keys()];
  const bars = order.map((place) =>
    element("li", { class: String(facts.classes[place]) === String(label) ? "best" : "" },
      element("span", { class: "name" }, String(facts.classes[place])),
      element("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, element("rect", { width: 100 * scores[place], height: 10, rx: 1 })),
      element("span", { class: "share" }, percent(scores[place]))));
  at("scores").replaceChildren(element("ol", { class: "scores", "aria-label": "Probability of each class" }, ...bars));
}

/** Offer the labels that teach: buttons, a list, or a number. */
function labels() {
  const learn = (label) => guarded(() => latest && teach(latest, [label]));
  if (facts.classes && facts.classes.length <= BUTTONS) {
    const buttons = facts.classes.map((name) => element("button", { type: "button", class: "quiet", "aria-label": `That was ${name}`, "data-label": name, onclick: () => learn(name) }, String(name)));
    return at("labels").append(element("div", { class: "labels" }, ...buttons));
  }
  if (!facts.classes) at("teach-title").textContent = "Wrong? Give the right answer";
  const field = facts.classes ? element("select", {}, ...facts.classes.map((name) => element("option", {}, String(name)))) : element("input", { type: "number", step: "any" });
  const given = () => (facts.classes ? facts.classes[field.selectedIndex] : readLabel(field.value, null, "The right answer"));
  at("labels").append(element("div", { class: "labels" }, element("label", {}, "Right answer", field), element("button", { type: "button", onclick: () => guarded(() => learn(given())) }, "Train on it")));
}

/** Train on corrections, with a curve, and check that other rows are as right as before. */
async function teach(inputs, labels) {
  if (running) throw new Error("The model trains already.\nFix: wait, or press Stop.");
  running = new AbortController();
  at("stop").disabled = false;
  for (const button of document.querySelectorAll(TRAINING)) button.disabled = true;
  curve.clear();
  at("status").textContent = "Training …";
  at("status").scrollIntoView({ block: "nearest" });
  try {
    await learner.teach(inputs, labels, { signal: running.signal, onEpoch: ({ loss }) => curve.add(loss) });
  } catch (error) {
    if (!running.signal.aborted) throw error;
  } finally {
    at("stop").disabled = true;
    for (const button of document.querySelectorAll(TRAINING)) button.disabled = false;
    const verb = running.signal.aborted ? "Stopped after" : "Trained for";
    running = null;
    at("kept").textContent = await learner.keep();
    await afterwards(`${verb} ${curve.losses.length} epochs.`);
  }
  if (latest) await predict(latest);
}

/** Say what the model knows now. */
async function afterwards(status) {
  const { taught } = learner;
  const count = taught.labels.length;
  const word = facts.classes ? percent : (error) => String(+error.toPrecision(4));
  const measure = facts.classes ? "right" : "mean error";
  const others = learner.rows.check ? "held-out rows" : "training rows";
  const figures = [[`${others} ${measure}`, `${word(await learner.check(checked))} (before: ${word(before)})`]];
  const both = learner.contradiction();
  at("contradiction").textContent = both ? `The same row was taught as ${both[0]} and as ${both[1]}: no model learns both. Forget everything, and teach again.` : "";
  at("contradiction").hidden = !both;
  at("hint").hidden = true;
  if (count) {
    const score = await learner.check(taught);
    figures.unshift([`corrections ${measure}`, facts.classes ? `${Math.round(score * count)} of ${count}` : word(score)]);
    at("hint").hidden = !facts.classes || score >= ENOUGH || Boolean(both);
  }
  at("figures").replaceChildren(...figures.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  at("status").textContent = status;
  if (facts.kind !== "picture") return;
  const read = count ? await learner.predict(taught.inputs) : [];
  at("corrections").replaceChildren(...read.map(({ label }, row) => thumbnail(taught.inputs[facts.input][row], taught.labels[row], label)));
}

function thumbnail(row, label, read) {
  const canvas = element("canvas", { width: facts.width, height: facts.height, "aria-hidden": "true" });
  paint(canvas, row, facts);
  const mark = read === label ? element("span", { class: "right" }, "✓ learned") : element("span", { class: "wrong" }, `✗ read as ${read}`);
  return element("li", {}, canvas, element("span", {}, `is ${label} `, mark));
}

async function forget() {
  await learner.forget();
  curve.clear();
  await afterwards("Back to the model as it was.");
  if (latest) await predict(latest);
}

guarded(() =>
  start().catch((error) => {
    if (!panel) at("input-title").textContent = "Not loaded";
    at("status").textContent = "The model is not loaded.";
    throw error;
  }));
