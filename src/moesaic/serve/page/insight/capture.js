// Writes the next steps to a file: a trace for ui.perfetto.dev, or routing for the simulator.

import { announce, h, setText } from "../base/dom.js";
import { request } from "../base/api.js";
import { copyButton, download } from "../base/files.js";
import { bytes } from "../base/format.js";

const STEPS = 32;
const WAIT_S = 600; // steps come with requests, so this waits for them
const MACHINES = [
  ["rtx5070-r7-9700x", "RTX 5070 and a Ryzen 7 9700X"],
  ["rtx4090-i9-13900k", "RTX 4090 and a Core i9-13900K"],
  ["rtx5090-r9-9950x", "RTX 5090 and a Ryzen 9 9950X"],
  ["rtx4090-2x6454s", "RTX 4090 and two Xeon Gold 6454S"],
  ["h100-xeon8470", "H100 and a Xeon Platinum 8470"],
  ["gh200-480gb", "GH200"],
  ["dgx-spark", "DGX Spark"],
];
const NAMES = { perfetto: "moesaic-steps.json", routing: "moesaic-routing.moet" };

export class Capture {
  constructor() {
    this.control = null;
    this.state = h("p", { class: "hint", role: "status" });
    this.command = h("code", { tabindex: "0", "aria-label": "Command" });
    this.machine = h("select", { id: "machine", onchange: () => this.showCommand() }, MACHINES.map(([name, text]) => h("option", { value: name }, text)));
    this.file = NAMES.routing;
    this.name = "MODEL";
    this.showCommand();
    this.cancel = h("button", { type: "button", class: "quiet small", hidden: true, onclick: () => this.control?.abort() }, "Cancel");
    this.buttons = [this.button("perfetto", `Perfetto trace of the next ${STEPS} steps`), this.button("routing", `Routing of the next ${STEPS} steps`)];
    this.element = h("section", { class: "card capture" }, h("h2", {}, "Would another machine help me?"),
      h("p", {}, "Save the routing of your own requests, and replay it on a machine that you do not own. A Perfetto trace shows the same steps on a timeline."),
      h("div", { class: "row buttons" }, this.buttons, this.cancel),
      this.state,
      h("label", { for: "machine" }, "Replay it on"), this.machine,
      h("div", { class: "command" }, this.command, copyButton(() => this.command.textContent)),
      h("p", { class: "hint" }, h("code", {}, "moesaic machines"), " lists more, and ", h("code", {}, "--set gpu.memory_gb=48"), " changes one number. For a model that ", h("code", {}, "moesaic models"), " does not list, give its config.json."));
  }

  showCommand() {
    setText(this.command, `moesaic simulate --model ${this.name} --machine ${this.machine.value} --trace ${this.file}`);
  }

  /** Models are known by the last part of their ids, in small letters. */
  setModel({ name }) {
    this.name = name.split("/").at(-1).toLowerCase().replace(/[^\w.-]/g, "_");
    this.showCommand();
  }

  button(kind, label) {
    return h("button", { type: "button", class: "small", onclick: () => this.capture(kind) }, label);
  }

  async capture(kind) {
    this.control = new AbortController();
    this.busy(true);
    setText(this.state, `Waiting for ${STEPS} steps. They come while answers are written.`);
    try {
      const response = await request("insight/capture", { body: { kind, steps: STEPS, wait_s: WAIT_S }, signal: this.control.signal });
      const file = await response.blob();
      const name = named(response) ?? NAMES[kind];
      download(name, file);
      if (kind === "routing") this.file = name;
      this.showCommand();
      setText(this.state, `${name} was saved (${bytes(file.size)}). ${kind === "perfetto" ? "Open it in ui.perfetto.dev." : "The command above replays it."}`);
    } catch (error) {
      setText(this.state, this.control.signal.aborted ? "Nothing was captured." : `Nothing was captured: ${error.message}.`);
    }
    announce(this.state.textContent);
    this.busy(false);
  }

  busy(busy) {
    for (const button of this.buttons) button.disabled = busy;
    this.cancel.hidden = !busy;
  }
}

/** The server's name for the file, if it is a plain one. */
function named(response) {
  const found = /filename="?([\w.-]+)"?/.exec(response.headers.get("Content-Disposition") ?? "");
  return found?.[1] ?? null;
}
