import { element } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [480, 160, 52, 20];

const short = (loss) => (loss > 999 ? Intl.NumberFormat("en", { notation: "compact" }).format(loss) : String(+loss.toPrecision(3)));

/** A curve of losses that grows while a model trains; a text says the same to screen readers. */
export class Curve {
  constructor(place) {
    this.losses = [];
    this.path = element("path");
    this.top = element("text", { x: LEFT - 6, y: 14, "text-anchor": "end" });
    this.low = element("text", { x: LEFT - 6, y: HEIGHT - BOTTOM, "text-anchor": "end" });
    this.end = element("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" });
    this.title = element("title", {}, "No training yet");
    const axis = (x2, y1) => element("line", { x1: LEFT, y1, x2, y2: HEIGHT - BOTTOM });
    this.svg = element(
      "svg", { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" },
      this.title, axis(LEFT, 4), axis(WIDTH, HEIGHT - BOTTOM), this.path, this.top, this.low, this.end,
    );
    place.append(this.svg);
    this.draw();
  }

  clear() {
    this.losses = [];
    this.draw();
  }

  add(loss) {
    this.losses.push(loss);
    this.draw();
  }

  draw() {
    const shown = this.losses.filter(Number.isFinite);
    this.svg.parentNode.hidden = !shown.length;
    const most = Math.max(...shown, 1e-9), least = Math.min(...shown, 0);
    const x = (place) => LEFT + ((WIDTH - LEFT - 4) * place) / Math.max(1, this.losses.length - 1);
    const y = (loss) => 6 + ((HEIGHT - BOTTOM - 6) * (most - loss)) / (most - least || 1);
    this.path.setAttribute("d", shown.map((loss, place) => `${place ? "L" : "M"}${x(place)} ${y(loss)}`).join(""));
    this.top.textContent = shown.length ? short(most) : "";
    this.low.textContent = shown.length ? short(least) : "";
    this.end.textContent = shown.length ? `loss, ${this.losses.length} epochs` : "";
    const last = this.losses.at(-1);
    this.title.textContent = shown.length ? `Loss after ${this.losses.length} epochs: ${short(last)}` : "No training yet";
  }
}
