// Shows what the last answers were read from: of each chunk its text, coloured by where its KV came from.

import { $, count, el, figures, tag } from "./dom.js";

const NAMES = { resident: "resident", loaded: "loaded", stored: "resident or loaded", recomputed: "computed for this request", untold: "not told of each chunk" };

/** Where the chunks' KV came from, as far as the request's counts say it of every chunk, and the tokens of the
 * prompt by that. `loaded` counts chunks that were not resident whole, with what is computed anew of them. */
export function origin({ usage, kvquilt }) {
  const { loaded, recomputed, selected } = kvquilt.tokens;
  const cached = usage.prompt_tokens_details.cached_tokens;
  if (kvquilt.mode === "full" || !kvquilt.context?.length) return { from: "recomputed", parts: { resident: cached, recomputed } };
  const sizes = kvquilt.context.map((chunk) => chunk.num_tokens);
  const whole = sizes.includes(null) ? Infinity : sizes.reduce((sum, size) => sum + size, 0);
  const used = whole - selected;
  if (cached < used) return { from: "untold", parts: { stored: cached, recomputed } };
  if (!loaded) return { from: "resident", parts: { resident: cached, recomputed } };
  if (loaded >= whole) return { from: "loaded", parts: { resident: cached - used, loaded: used, recomputed } };
  return { from: "stored", parts: { stored: cached, recomputed } };
}

export function showContext(answers) {
  $("context-body").replaceChildren(el("div", { class: "lanes" }, ...answers.map(one)));
}

export function start() {
  $("context-body").replaceChildren(el("p", { class: "panel empty" }, "Ask a question first: its chunks are shown here."));
}

function one(told) {
  const { usage, kvquilt } = told;
  const { from, parts } = origin(told);
  const stack = el("div", { class: "stack", "aria-hidden": "true" }, ...Object.entries(parts).map(([kind, tokens]) => {
    const part = el("span", { class: kind });
    part.style.setProperty("flex-grow", String(tokens));
    return part;
  }));
  return el("article", { class: "lane" },
    el("div", { class: "panel" }, el("h2", {}, kvquilt.mode ?? "no mode"), el("p", { class: "hint" }, "Tokens of the whole prompt, with prefix and question"), stack,
      figures([["From stored KV", count(usage.prompt_tokens_details.cached_tokens)], ["Of chunks that were loaded", count(kvquilt.tokens.loaded)], ["Computed", count(kvquilt.tokens.recomputed)], ["Chosen by the mode", count(kvquilt.tokens.selected)]]),
      el("h3", {}, "Colours"),
      el("ul", { class: "legend" }, ...[["resident", "resident"], ["loaded", "loaded"], ["recomputed", "computed"], ["conditioned", "behind its document"]].map(([kind, text]) => el("li", {}, tag(text, kind))))),
    el("div", { class: "chunks" }, ...(kvquilt.context ?? []).map((chunk) => shown(chunk, kvquilt.sources[chunk.source], from))));
}

function shown(chunk, source, from) {
  const stored = from !== "recomputed";
  return el("div", { class: `card chunk ${from} ${chunk.conditioned && stored ? "conditioned" : ""}` },
    el("h2", {}, `${chunk.source + 1} · ${[source.title || source.document_id, source.heading].filter(Boolean).join(", ")}`),
    el("div", { class: "tags" }, tag(NAMES[from], from), chunk.num_tokens === null ? null : tag(`${count(chunk.num_tokens)} tokens`),
      stored && chunk.selected_tokens ? tag(`${count(chunk.selected_tokens)} computed anew`, "recomputed") : null,
      chunk.conditioned && stored ? tag("behind its document", "conditioned") : null),
    el("p", { class: "text" }, ...pieces(chunk, stored)));
}

/** The text cut at spans; offsets count code points, as the API's do. */
function pieces({ text, spans }, stored) {
  const points = Array.from(text);
  const base = (begin, end) => el("span", { class: "base" }, points.slice(begin, end).join(""));
  const cut = [];
  let at = 0;
  for (const { start, end, score } of stored ? spans : []) {
    if (start < at) continue;
    if (start > at) cut.push(base(at, start));
    cut.push(el("mark", { title: `computed anew, score ${score.toPrecision(3)}` }, points.slice(start, end).join("")));
    at = end;
  }
  if (at < points.length) cut.push(base(at, points.length));
  return cut;
}
