// The map of layers and experts: a canvas with a cursor that the mouse and the arrow keys move.

import { announce, h, oncePerFrame, setText } from "../base/dom.js";
import { colour, onThemeChange } from "../base/theme.js";
import { mapGeometry } from "./geometry.js";
import { RAN } from "./experts.js";

const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const FAR = 8; // cells that Page Up and Page Down move
const LABEL_PX = 26; // between the numbers of layers

export class ExpertMap {
  /** `chosen(layer, expert)` is called when a cell is chosen, and `pointed()` after a click. */
  constructor(chosen, pointed) {
    this.chosen = chosen;
    this.pointed = pointed;
    this.canvas = h("canvas");
    this.cursor = h("div", { class: "cursor", hidden: true });
    this.hint = h("p", { class: "hint numbers" }, "Choose a cell to see why its expert ran there.");
    this.field = h("div", {
      class: "map-field", tabindex: "0", role: "application", "aria-label": "Map of experts",
      "aria-roledescription": "map", "aria-keyshortcuts": "ArrowLeft ArrowRight ArrowUp ArrowDown Enter",
    }, this.canvas, this.cursor);
    this.element = h("div", { class: "map" }, this.field, this.hint);
    this.place = null;
    this.draw = oncePerFrame(() => this.paint());
    this.listen();
  }

  listen() {
    this.field.addEventListener("keydown", (event) => this.keyPressed(event));
    this.field.addEventListener("focus", () => this.moveTo(this.place ?? { layer: 0, expert: 0 }));
    this.field.addEventListener("pointermove", (event) => {
      const cell = this.cellOf(event);
      if (cell) setText(this.hint, this.describe(cell));
    });
    this.field.addEventListener("click", (event) => {
      const cell = this.cellOf(event);
      if (!cell) return;
      this.choose(cell);
      this.pointed(cell);
    });
    new ResizeObserver(this.draw).observe(this.element);
    onThemeChange(this.draw);
  }

  update(experts, model) {
    this.experts = experts;
    this.model = model;
    this.field.setAttribute("aria-label", `Map of ${model.layers} layers with ${model.experts} experts each. Arrow keys move, Enter shows why an expert ran where it did.`);
    this.draw();
    if (this.place) setText(this.hint, this.describe(this.place));
  }

  describe({ layer, expert }) {
    return this.experts.describe(layer, expert, Boolean(this.model.accelerator));
  }

  cellOf(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.geometry?.cellAt(event.clientX - box.left, event.clientY - box.top) ?? null;
  }

  keyPressed(event) {
    if (!this.experts) return;
    const place = this.place ?? { layer: 0, expert: 0 };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose(place);
      return;
    }
    const next = this.step(place, event.key);
    if (!next) return;
    event.preventDefault();
    this.moveTo(next);
    announce(this.describe(next));
  }

  step({ layer, expert }, key) {
    const { layers, experts } = this.experts;
    let [across, down] = KEYS[key] ?? { PageUp: [0, -FAR], PageDown: [0, FAR], Home: [-1e9, 0], End: [1e9, 0] }[key] ?? [];
    if (across === undefined) return null;
    if (this.geometry.turned) [across, down] = [down, across];
    const within = (value, count) => Math.min(count - 1, Math.max(0, value));
    return { layer: within(layer + down, layers), expert: within(expert + across, experts) };
  }

  moveTo(place) {
    if (!this.experts) return;
    this.place = place;
    setText(this.hint, this.describe(place));
    this.placeCursor();
  }

  choose(place) {
    this.moveTo(place);
    this.chosen(place.layer, place.expert);
  }

  placeCursor() {
    this.cursor.hidden = !this.place || !this.geometry;
    if (this.cursor.hidden) return;
    const { cellWidth, cellHeight, corner } = this.geometry;
    const [x, y] = corner(this.place.layer, this.place.expert);
    const { style } = this.cursor;
    [style.left, style.top] = [`${x - 2}px`, `${y - 2}px`];
    [style.width, style.height] = [`${cellWidth + 3}px`, `${cellHeight + 3}px`];
  }

  paint() {
    if (!this.experts || !this.element.clientWidth) return;
    this.geometry = mapGeometry(this.element.clientWidth, this.experts.layers, this.experts.experts);
    const { width, height } = this.geometry;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    [this.canvas.style.width, this.canvas.style.height] = [`${width}px`, `${height}px`];
    const context = this.canvas.getContext("2d");
    this.paintCells(context, scale);
    context.scale(scale, scale);
    this.paintLabels(context);
    this.placeCursor();
  }

  /** One path of cells per colour, on whole pixels of the device. */
  paintCells(context, scale) {
    const { ran, resident, layers, experts } = this.experts;
    const colours = [colour("elsewhere"), colour("gpu"), colour("cpu"), colour("link"), colour("resident")];
    const { corner, cellWidth, cellHeight, gap } = this.geometry;
    colours.forEach((each, kind) => {
      context.fillStyle = each;
      for (let place = 0; place < layers * experts; place += 1) {
        const found = ran[place] || (resident[place] ? 1 + RAN.link : 0);
        if (found !== kind) continue;
        const [x, y] = corner(Math.floor(place / experts), place % experts);
        const [left, top] = [Math.round(x * scale), Math.round(y * scale)];
        const right = Math.round((x + cellWidth) * scale) - Math.round(gap * scale);
        const bottom = Math.round((y + cellHeight) * scale) - Math.round(gap * scale);
        context.fillRect(left, top, right - left, bottom - top);
      }
    });
  }

  paintLabels(context) {
    const { corner, turned, cellWidth, cellHeight } = this.geometry;
    const every = Math.ceil(LABEL_PX / (turned ? cellWidth : cellHeight));
    context.fillStyle = colour("soft");
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    for (let layer = 0; layer < this.experts.layers; layer += every) {
      const [x, y] = corner(layer, 0);
      context.textAlign = turned ? "left" : "right";
      if (turned) context.fillText(String(layer), x, 8);
      else context.fillText(String(layer), x - 7, Math.max(6, y + cellHeight / 2));
    }
  }
}
