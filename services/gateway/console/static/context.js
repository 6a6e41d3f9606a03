// Shows what the last answers were read from: of each chunk its text, coloured by where its KV came from.

import { $, count, counted, el, figures, tag } from "./dom.js";

const NAMES = {
  resident: "resident", memory: "loaded from memory", disk: "loaded from disk", peer: "loaded from another node",
  objects: "loaded from the object store", loaded: "loaded", computed: "computed for this request", untold: "not told",
};
const kind = (chunk) => (chunk.origin === null ? "untold" : chunk.origin in NAMES ? chunk.origin : "loaded");

/** The tokens of the whole prompt by where their KV came from: the API's counts of those that existed and of those
 * that were computed, the first split by chunks. What no chunk has is the prefix, which is resident. Where the API
 * does not count tokens chunk by chunk (handed documents, modes that compute other tokens in every layer), it is
 * left whole. */
export function parts({ usage, kvquilt }) {
  const existed = usage.prompt_tokens_details.cached_tokens;
  const rest = { computed: kvquilt.tokens.recomputed };
  const used = (kvquilt.context ?? []).filter((chunk) => chunk.origin !== "computed");
  const selected = (kvquilt.context ?? []).reduce((sum, chunk) => sum + (chunk.selected_tokens ?? NaN), 0);
  const told = { resident: 0 };
  for (const chunk of used) told[kind(chunk)] = (told[kind(chunk)] ?? 0) + (chunk.num_tokens ?? NaN) - chunk.selected_tokens;
  const inChunks = Object.values(told).reduce((sum, tokens) => sum + tokens, 0);
  if (used.length && (selected !== kvquilt.tokens.selected || !(inChunks <= existed))) return { stored: existed, ...rest };
  told.resident += existed - inChunks;
  return { ...told, ...rest };
}

export function showContext(answers) {
  $("context-body").replaceChildren(el("div", { class: "lanes" }, ...answers.map(one)));
}

export function start() {
  $("context-body").replaceChildren(el("p", { class: "panel empty" }, "Ask a question first: its chunks are shown here."));
}

function one(told) {
  const { usage, kvquilt } = told;
  const split = Object.entries(parts(told)).filter(([, tokens]) => tokens > 0);
  const stack = el("div", { class: "stack", "aria-hidden": "true" }, ...split.map(([from, tokens]) => {
    const part = el("span", { class: from });
    part.style.setProperty("flex-grow", String(tokens));
    return part;
  }));
  return el("article", { class: "lane" },
    el("div", { class: "panel" }, el("h2", {}, kvquilt.mode ?? "no mode"), el("p", { class: "hint" }, "Tokens of the whole prompt, with prefix and question"), stack,
      el("ul", { class: "legend", "aria-label": "Tokens by where their KV came from" },
        ...split.map(([from, tokens]) => el("li", { "data-part": from }, tag(`${NAMES[from] ?? "stored"}: ${count(tokens)}`, from)))),
      figures([["From stored KV", count(usage.prompt_tokens_details.cached_tokens)], ["Of chunks that were loaded", count(kvquilt.tokens.loaded)], ["Computed", count(kvquilt.tokens.recomputed)], ["Chosen by the mode", count(kvquilt.tokens.selected)]]),
      el("h3", {}, "In the text"),
      el("ul", { class: "legend" }, el("li", {}, el("mark", {}, "computed anew")), el("li", {}, tag("behind its document", "conditioned")))),
    el("div", { class: "chunks" }, ...(kvquilt.context ?? []).map((chunk) => shown(chunk, kvquilt.sources[chunk.source], kvquilt.mode !== "full"))));
}

/** `stored`: the mode uses KV of chunks as it is stored, or would be; else nothing of them is computed anew. */
function shown(chunk, source, stored) {
  const from = kind(chunk);
  return el("div", { class: `card chunk ${from} ${chunk.conditioned && stored ? "conditioned" : ""}`, "data-origin": chunk.origin ?? "" },
    el("h2", {}, `${chunk.source + 1} · ${[source.title || source.document_id, source.heading].filter(Boolean).join(", ")}`),
    el("div", { class: "tags" }, tag(NAMES[from], from), chunk.num_tokens === null ? null : tag(counted(chunk.num_tokens, "token")),
      stored && chunk.selected_tokens ? tag(`${count(chunk.selected_tokens)} computed anew`, "computed") : null,
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
