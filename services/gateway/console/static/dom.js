// Makes elements. Text is only ever text: nothing here parses markup.

export const $ = (id) => document.getElementById(id);

/** An element with attributes (`class`, `title`, …), listeners (`onclick`) and children (elements or text). */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const tag = (text, kind = "") => el("span", { class: `tag ${kind}` }, text);
export const milliseconds = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toFixed(1)} ms`);
export const count = (number) => number.toLocaleString("en");
export const counted = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

export function figures(pairs) {
  return el("dl", { class: "figures" }, ...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function problem(error) {
  const shown = $("problem");
  shown.hidden = !error;
  shown.textContent = error ? error.message : "";
}
