// A snapshot as arrays over layers and experts, for drawing and for looking one up.

export const RESTED = 0;
export const RAN = { gpu: 1, cpu: 2, link: 3 };
export const PLACES = { gpu: "on the GPU", cpu: "on the CPU", link: "over the link" };

export class Experts {
  constructor(model, snapshot) {
    this.layers = model.layers;
    this.experts = model.experts;
    this.ran = new Uint8Array(this.layers * this.experts);
    this.resident = new Uint8Array(this.layers * this.experts);
    this.details = new Map();
    this.byLayer = new Map();
    snapshot?.resident?.forEach((ids, layer) => ids.forEach((expert) => this.setResident(layer, expert)));
    for (const each of snapshot?.layers ?? []) this.addLayer(each);
  }

  setResident(layer, expert) {
    if (this.has(layer, expert)) this.resident[layer * this.experts + expert] = 1;
  }

  addLayer(layer) {
    this.byLayer.set(layer.layer, layer);
    for (const each of layer.experts ?? []) {
      if (!this.has(layer.layer, each.expert)) continue;
      const place = layer.layer * this.experts + each.expert;
      this.ran[place] = RAN[each.ran] ?? RESTED;
      this.details.set(place, each);
    }
  }

  has(layer, expert) {
    return layer >= 0 && layer < this.layers && expert >= 0 && expert < this.experts;
  }

  /** {expert, tokens, ran, why, options} of the last step, or undefined if it rested. */
  detail(layer, expert) {
    return this.details.get(layer * this.experts + expert);
  }

  isResident(layer, expert) {
    return this.resident[layer * this.experts + expert] === 1;
  }

  /** One sentence, for a tooltip and for readers of the screen. */
  describe(layer, expert, accelerated) {
    const detail = this.detail(layer, expert);
    const ran = detail ? `ran ${PLACES[detail.ran]} for ${detail.tokens} ${detail.tokens === 1 ? "token" : "tokens"}` : "rested";
    const where = accelerated ? `, ${this.isResident(layer, expert) ? "in GPU memory" : "in main memory"}` : "";
    return `Layer ${layer}, expert ${expert}${where}: ${ran}`;
  }
}
