// Builds DOM nodes. Text becomes text nodes: nothing here reads HTML.

/** An element of this tag; `properties` are attributes, `class`, or listeners as `onclick`. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Replace the children only where the text differs, so that what a reader has selected stays. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Ask once per frame, however often it is called. */
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** Say something to readers of the screen who do not see it change. */
export function announce(text) {
  setText(byId("announcements"), text);
}
