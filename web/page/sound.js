import { element } from "./dom.js";

const [WIDTH, HEIGHT, LONGEST] = [900, 180, 60]; // of the picture; seconds of a recording

/** A recording from the microphone or a file, with the segments that have a label other than the rest. */
export class Sound {
  constructor(place, facts, { onSound, onTeach, onProblem }) {
    Object.assign(this, { facts, onSound, onTeach, onProblem, samples: null, segments: [] });
    const file = element("input", { type: "file", accept: "audio/*,.wav", onchange: (event) => this.open(event.target.files[0]) });
    this.button = element("button", { type: "button", id: "record", "aria-pressed": "false", onclick: () => this.record() }, "Record");
    this.wave = element("canvas", { class: "wave", width: WIDTH, height: HEIGHT, role: "img", "aria-label": "No recording yet" });
    this.list = element("div", { id: "segments" });
    this.train = element("button", { type: "button", id: "train-sound", disabled: true, onclick: () => this.teach() }, "Train on this recording");
    this.more = element("button", { type: "button", class: "quiet", disabled: true, onclick: () => this.add(0, this.seconds, this.facts.classes.at(-1)) }, "Add a segment");
    place.append(
      element("p", { class: "row" }, this.button, element("label", { class: "button quiet" }, "Open a sound file", file)),
      element("p"), this.wave,
      element("h3", {}, "Segments"),
      element("p", { class: "soft" }, `Correct them where the model is wrong. The rest of the recording is ${facts.classes[0]}.`),
      this.list, element("p", { class: "row" }, this.more, this.train));
    this.player = element("audio", { controls: true, hidden: true });
    this.wave.after(this.player);
  }

  get seconds() {
    return this.samples.length / this.facts.rate;
  }

  get hop() {
    return this.facts.hop ?? this.facts.samples;
  }

  async record() {
    if (this.recorder?.state === "recording") return this.recorder.stop();
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      const pieces = [];
      this.recorder = new MediaRecorder(stream);
      this.recorder.ondataavailable = (event) => pieces.push(event.data);
      this.recorder.onstop = () => {
        stream.getTracks().forEach((track) => track.stop());
        this.pressed(false);
        this.open(new Blob(pieces));
      };
      this.recorder.start();
      setTimeout(() => this.recorder.state === "recording" && this.recorder.stop(), 1000 * LONGEST);
      this.pressed(true);
    } catch (error) {
      this.onProblem(new Error(`The page needs a microphone.\nFound: ${error.message}\nFix: allow it in the browser, or open a file.`));
    }
  }

  pressed(on) {
    this.button.textContent = on ? "Stop recording" : "Record";
    this.button.setAttribute("aria-pressed", String(on));
  }

  /** Read a sound as one channel at the model's rate. */
  async open(blob) {
    if (!blob) return;
    try {
      const context = new OfflineAudioContext(1, 1, this.facts.rate);
      const buffer = await context.decodeAudioData(await blob.arrayBuffer());
      const channels = Array.from({ length: buffer.numberOfChannels }, (_, channel) => buffer.getChannelData(channel));
      const length = Math.min(buffer.length, LONGEST * this.facts.rate);
      this.samples = Float32Array.from({ length }, (_, place) => channels.reduce((sum, channel) => sum + channel[place], 0) / channels.length);
    } catch (error) {
      return this.onProblem(new Error(`The file must be a sound that this browser reads.\nFound: ${error.message}\nFix: save it as a .wav file.`));
    }
    URL.revokeObjectURL(this.player.src);
    Object.assign(this.player, { src: URL.createObjectURL(blob), hidden: false });
    this.more.disabled = this.train.disabled = false;
    await this.onSound(this.windows());
  }

  /** Return the windows of the recording, padded with silence to at least one. */
  windows() {
    const { samples: size, scale = 1, pad } = this.facts;
    const short = Math.max(0, size - this.samples.length);
    const padded = new Float32Array(this.samples.length + short);
    padded.set(this.samples, pad === "start" ? short : 0);
    const count = 1 + Math.floor((padded.length - size) / this.hop);
    return Array.from({ length: count }, (_, row) => Array.from(padded.subarray(row * this.hop, row * this.hop + size), (x) => x * scale));
  }

  /** Show predictions of the windows, as a curve and as segments; `fresh`: replace the segments. */
  show(predictions, fresh) {
    this.draw(predictions);
    if (!fresh) return;
    this.segments = [];
    this.list.replaceChildren();
    let start = 0;
    for (let row = 1; row <= predictions.length; row++) {
      if (row < predictions.length && predictions[row].label === predictions[start].label) continue;
      if (predictions[start].label !== this.facts.classes[0]) this.add(this.time(start), this.time(row), predictions[start].label);
      start = row;
    }
  }

  time(row) {
    return Math.min(this.seconds, (row * this.hop + (this.facts.samples - this.hop) / 2) / this.facts.rate);
  }

  add(start, end, label) {
    const number = (name, value) => element("label", {}, name, element("input", { type: "number", min: 0, step: 0.01, value: value.toFixed(2), oninput: (event) => (segment[name] = Number(event.target.value)) }));
    const options = this.facts.classes.map((each) => element("option", { value: each, selected: each === label }, String(each)));
    const segment = { start, end, label };
    const choice = element("select", { onchange: (event) => (segment.label = this.facts.classes[event.target.selectedIndex]) }, ...options);
    const remove = () => {
      this.segments = this.segments.filter((each) => each !== segment);
      line.remove();
    };
    const line = element("div", { class: "segment", role: "group", "aria-label": `Segment from ${start.toFixed(2)} s` },
      number("start", start), number("end", end), element("label", {}, "label", choice),
      element("button", { type: "button", class: "quiet", onclick: remove }, "Remove"));
    this.segments.push(segment);
    this.list.append(line);
  }

  teach() {
    const rows = this.windows();
    const label = (row) => {
      const middle = (row * this.hop + this.facts.samples / 2) / this.facts.rate;
      return (this.segments.findLast(({ start, end }) => middle >= start && middle < end) ?? { label: this.facts.classes[0] }).label;
    };
    this.onTeach(rows, rows.map((_, row) => label(row)));
  }

  draw(predictions) {
    const context = this.wave.getContext("2d"), style = getComputedStyle(this.wave);
    const colour = (name) => style.getPropertyValue(name);
    context.clearRect(0, 0, WIDTH, HEIGHT);
    context.fillStyle = colour("--bar");
    const per = this.samples.length / WIDTH;
    for (let x = 0; x < WIDTH; x++) {
      const part = this.samples.subarray(x * per, Math.max(x * per + 1, (x + 1) * per));
      const most = part.reduce((high, value) => Math.max(high, Math.abs(value)), 0);
      context.fillRect(x, (HEIGHT / 2) * (1 - most), 1, Math.max(1, HEIGHT * most));
    }
    context.strokeStyle = colour("--main");
    context.lineWidth = 2;
    context.beginPath();
    const share = ({ scores, label }) => (scores ? 1 - scores[0] : Number(label));
    predictions.forEach((prediction, row) => context.lineTo((WIDTH * this.time(row)) / this.seconds, 4 + (HEIGHT - 8) * (1 - share(prediction))));
    context.stroke();
    const found = predictions.filter(({ label }) => label !== this.facts.classes[0]).length;
    this.wave.setAttribute("aria-label", `Recording of ${this.seconds.toFixed(1)} seconds; ${found} of ${predictions.length} windows are not ${this.facts.classes[0]}`);
  }
}
