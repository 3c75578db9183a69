import { element } from "./dom.js";

const [SIZE, FINE, STROKE, STEP] = [280, 8, 0.17, 0.04]; // of the canvas; of a pixel; of the height; of the pen's keys
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** A canvas for mouse, finger, pen or arrow keys, whose drawing becomes a row as the training rows are. */
export class Drawing {
  constructor(place, facts, { onChange, onProblem }) {
    Object.assign(this, { facts, onChange, onProblem, strokes: [], picture: null, pen: [0.5, 0.2], down: false });
    this.canvas = element("canvas", {
      class: "draw", width: SIZE, height: SIZE, tabindex: 0, role: "application",
      "aria-label": "Drawing area", "aria-describedby": "draw-help",
    });
    this.seen = element("canvas", { width: facts.width, height: facts.height, role: "img", "aria-label": "What the model sees" });
    const file = element("input", { type: "file", accept: "image/*", onchange: (event) => this.open(event.target.files[0]) });
    place.append(
      element("div", { class: "pad" },
        element("div", {}, this.canvas),
        element("figure", { class: "seen" }, this.seen, element("figcaption", {}, element("small", {}, "what the model sees")))),
      element("p", { class: "row" },
        element("button", { type: "button", id: "clear", class: "quiet", onclick: () => this.clear() }, "Clear"),
        element("label", { class: "button quiet" }, "Open a picture", file)),
      element("small", { id: "draw-help" }, "Keyboard: arrow keys move the pen, the space bar lifts it or puts it down, Delete clears."),
    );
    this.listen();
    this.show();
  }

  listen() {
    const { canvas } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.picture = null;
      this.strokes.push([place(event)]);
      this.show();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!canvas.hasPointerCapture(event.pointerId)) return;
      this.strokes.at(-1).push(...(event.getCoalescedEvents?.() ?? []).map(place), place(event));
      this.changed();
    });
    canvas.addEventListener("pointerup", () => this.changed());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.show());
    canvas.addEventListener("focus", () => this.show());
  }

  key(event) {
    if (event.key in KEYS) {
      const [right, below] = KEYS[event.key];
      this.pen = [this.pen[0] + right * STEP, this.pen[1] + below * STEP].map((x) => Math.min(0.98, Math.max(0.02, x)));
      if (this.down) this.strokes.at(-1).push(this.pen);
      this.down ? this.changed() : this.show();
    } else if (event.key === " ") {
      this.down = !this.down;
      if (this.down) this.strokes.push([this.pen]);
      this.show();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.clear();
    } else return;
    event.preventDefault();
  }

  async open(file) {
    if (!file) return;
    let picture;
    try {
      picture = await createImageBitmap(file);
    } catch (error) {
      return this.onProblem(new Error(`The file must be a picture that this browser reads.\nFound: ${error.message}\nFix: save it as a .png file.`));
    }
    Object.assign(this, { strokes: [], picture, down: false });
    this.changed();
  }

  clear() {
    Object.assign(this, { strokes: [], picture: null, down: false });
    this.show();
    this.onChange(null);
  }

  changed() {
    this.show();
    this.onChange(this.empty ? null : this.row());
  }

  get empty() {
    return this.picture === null && this.strokes.length === 0;
  }

  show() {
    const context = this.canvas.getContext("2d");
    context.fillStyle = "white";
    context.fillRect(0, 0, SIZE, SIZE);
    if (this.picture) cut(context, this.picture, this.facts, [SIZE, SIZE]);
    ink(context, this.strokes.map((stroke) => stroke.map(([x, y]) => [x * SIZE, y * SIZE])), SIZE / 14, "black");
    if (document.activeElement === this.canvas) {
      context.fillStyle = this.down ? "#b3261e" : "#0b62c4";
      context.fillRect(this.pen[0] * SIZE - 4, this.pen[1] * SIZE - 4, 8, 8);
    }
    paint(this.seen, this.empty ? null : this.row(), this.facts);
  }

  /** Return the numbers of a row: grey drawings are centred and as large as in training, pictures as they are. */
  row() {
    const { width, height, channels, last, paper, ink: dark, whole, pixels } = this.facts;
    const grey = channels === 1 && !this.picture;
    const shares = grey ? this.covered() : this.sampled();
    const per = (numbers, channel) => (Array.isArray(numbers) ? (numbers[channel] ?? numbers[0]) : numbers);
    const exact = (place, channel) => {
      if (channels === 1 && pixels.scale === undefined) return paper + (dark - paper) * shares[place];
      const order = pixels.color === "bgr" ? 2 - channel : channel;
      if (pixels.scale === undefined) return Math.min(paper, dark) + (Math.abs(dark - paper) * shares[place][order]) / 255;
      const level = grey ? 255 * (paper < dark ? shares[place] : 1 - shares[place]) : shares[place][channels === 1 ? 3 : order];
      return (level / pixels.scale - (per(pixels.mean, channel) ?? 0)) / (per(pixels.std, channel) ?? 1);
    };
    const value = (...place) => (whole ? Math.round(exact(...place)) : exact(...place));
    const count = width * height;
    return Array.from({ length: count * channels }, (_, place) =>
      last ? value(Math.floor(place / channels), place % channels) : value(place % count, Math.floor(place / count)));
  }

  covered() {
    const { width, height, box } = this.facts;
    const points = this.strokes.flat();
    const [left, right, top, bottom] = [0, 1].flatMap((axis) => {
      const ends = points.map((point) => point[axis]);
      return [Math.min(...ends), Math.max(...ends)];
    });
    const thick = STROKE * box[0];
    const scale = Math.min((box[0] - thick) / Math.max(bottom - top, 0.1), (width - thick) / Math.max(right - left, 0.1));
    const moved = (x, y) => [FINE * (width / 2 + scale * (x - (left + right) / 2)), FINE * (height / 2 + scale * (y - (top + bottom) / 2))];
    const context = new OffscreenCanvas(width * FINE, height * FINE).getContext("2d");
    ink(context, this.strokes.map((stroke) => stroke.map(([x, y]) => moved(x, y))), thick * FINE, "black");
    const { data } = context.getImageData(0, 0, width * FINE, height * FINE);
    return Array.from({ length: width * height }, (_, place) => {
      let sum = 0;
      for (let y = 0; y < FINE; y++)
        for (let x = 0; x < FINE; x++)
          sum += data[4 * ((Math.floor(place / width) * FINE + y) * width * FINE + (place % width) * FINE + x) + 3];
      return sum / (255 * FINE * FINE);
    });
  }

  /** Return red, green, blue and grey levels of each pixel; without a scale, the share of ink: unlike the corners. */
  sampled() {
    const { width, height, pixels, channels } = this.facts;
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.imageSmoothingQuality = "high";
    if (this.picture) cut(context, this.picture, this.facts, [width, height]);
    else context.drawImage(this.canvas, 0, 0, width, height);
    const { data } = context.getImageData(0, 0, width, height);
    const colours = Array.from({ length: width * height }, (_, place) => {
      const [red, green, blue] = data.subarray(4 * place, 4 * place + 3);
      return [red, green, blue, 0.299 * red + 0.587 * green + 0.114 * blue];
    });
    if (channels > 1 || pixels.scale !== undefined) return colours;
    const corners = [0, width - 1, width * (height - 1), width * height - 1].map((place) => colours[place][3]);
    const back = corners.reduce((sum, grey) => sum + grey, 0) / 4;
    return colours.map((colour) => Math.abs(colour[3] - back) / Math.max(back, 255 - back));
  }
}

/** Return the width and height to which training resized a picture, before it cut out the middle; at least the model's. */
export function resized(picture, { width, height, pixels: { resize, crop } }) {
  if (Array.isArray(resize)) return [resize[1], resize[0]];
  const recorded = resize ? resize / Math.min(picture.width, picture.height) : crop ? 1 : 0;
  const scale = Math.max(recorded, width / picture.width, height / picture.height);
  return [picture.width * scale, picture.height * scale];
}

/** Draw the part of a picture that the model sees on a canvas of a size. */
function cut(context, picture, facts, [width, height]) {
  const [wide, high] = resized(picture, facts);
  const [left, top] = [facts.width - wide, facts.height - high].map((more) => Math.round(more / 2));
  const [x, y] = [width / facts.width, height / facts.height];
  context.drawImage(picture, left * x, top * y, wide * x, high * y);
}

function ink(context, strokes, thick, colour) {
  Object.assign(context, { lineWidth: thick, lineCap: "round", lineJoin: "round", strokeStyle: colour });
  for (const [first, ...others] of strokes) {
    context.beginPath();
    context.moveTo(...first);
    for (const point of others.length ? others : [first]) context.lineTo(...point);
    context.stroke();
  }
}

/** Paint the numbers of a row on a canvas of the picture's size: of one channel, ink black on white. */
export function paint(canvas, row, { width, height, channels, last, paper, ink: dark, pixels }) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const [black, white] = channels === 1 ? [dark, paper] : [Math.min(paper, dark), Math.max(paper, dark)];
  for (let place = 0; place < width * height; place++) {
    for (let channel = 0; channel < 3; channel++) {
      const from = channels === 1 ? 0 : pixels.color === "bgr" ? 2 - channel : channel;
      const value = row ? row[last ? place * channels + from : from * width * height + place] : white;
      image.data[4 * place + channel] = (255 * (value - black)) / (white - black || 1);
    }
    image.data[4 * place + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
