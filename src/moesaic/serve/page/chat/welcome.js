// What an empty conversation shows: the model's name, and something to begin with.

import { byId, h } from "../base/dom.js";
import { serverProperties } from "../base/status.js";

const BUNDLED = "moesaic-20m";
const EXAMPLES = [
  "Why do most experts of a Mixture-of-Experts model rest?",
  "Write a table of three sorting algorithms with their costs.",
  "Explain this to a child: why is the sky blue?",
];
const WORD_PROBLEMS = [
  "There are 28 people on a bus. 13 get off and 9 get on. How many people are on the bus now?",
  "Ann has 5 pens and buys 7 more. How many pens does she have?",
  "Tom has 12 apples. He gives 5 apples to Mia. How many apples does Tom have left?",
];

export function drawWelcome(ask) {
  const model = serverProperties()?.model;
  const small = model === BUNDLED;
  const text = small
    ? "A small model that comes with the package. It works out grade-school problems in words, and hardly anything else."
    : "What you write stays between this browser and the server. Inside shows where each expert ran, and why.";
  const examples = (small ? WORD_PROBLEMS : EXAMPLES).map((each) =>
    h("li", {}, h("button", { type: "button", onclick: () => ask(each) }, each)));
  byId("welcome").replaceChildren(h("h1", {}, model ? `Ask ${model}` : "Ask the model"), h("p", {}, text), h("ul", {}, examples));
}
