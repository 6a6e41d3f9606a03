// Asks a question under one mode or two, one after the other, so that neither slows the other's figures.

import * as api from "./api.js";
import { branches } from "./branches.js";
import { showContext } from "./context.js";
import { $, count, el, figures, milliseconds, problem, tag } from "./dom.js";
import { waterfall } from "./waterfall.js";

const SPREAD = "0.8"; // at 0 all samples are the same
let stopping = null;
let model = "";

export async function load() {
  const [models, stores] = await Promise.all([api.models(), api.stores()]);
  model = models[0].id;
  const modes = models[0].kvquilt.modes;
  options($("mode"), [["", "the system's own"], ...modes.map((mode) => [mode, mode])]);
  options($("other"), [["", "nothing"], ...modes.map((mode) => [mode, mode])]);
  options($("collection"), stores.map((store) => [store.id, store.name || store.id]));
}

function options(select, pairs) {
  const chosen = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => el("option", { value }, text)));
  if (pairs.some(([value]) => value === chosen)) select.value = chosen;
}

export function start() {
  $("ask-form").addEventListener("submit", (event) => { event.preventDefault(); void ask(); });
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("ask-form").requestSubmit(); }
  });
  $("stop").addEventListener("click", () => stopping?.abort());
  $("samples").addEventListener("change", () => { if (Number($("samples").value) > 1 && !$("temperature").value) $("temperature").value = SPREAD; });
}

async function ask() {
  if (stopping) return;
  stopping = new AbortController();
  problem(null);
  $("submit").disabled = true;
  $("stop").hidden = false;
  const modes = $("other").value ? [$("mode").value, $("other").value] : [$("mode").value];
  const questions = $("several").checked ? $("question").value.split("\n").map((line) => line.trim()).filter(Boolean) : [$("question").value];
  const lanes = modes.map((mode) => lane(mode, questions, Number($("samples").value) || 1));
  $("lanes").replaceChildren(...lanes.map((one) => one.root));
  const answers = [];
  try {
    for (const one of lanes) answers.push(await one.run(stopping.signal));
  } catch (error) {
    if (error.name !== "AbortError") problem(error);
  } finally {
    for (const one of lanes) one.grown.stop();
    stopping = null;
    $("submit").disabled = false;
    $("stop").hidden = true;
    if (answers.length) showContext(answers);
  }
}

function lane(mode, questions, samples) {
  const grown = branches(questions, samples);
  const title = el("h2", {}, mode || "the system's own mode");
  const below = el("div");
  const root = el("article", { class: "panel lane" }, title, grown.root, below);
  const asked = { model, collection: $("collection").value, explain: true, n: samples };
  const many = questions.length > 1;
  if (many) asked.prompt = questions; else asked.messages = [{ role: "user", content: questions[0] }];
  if (many || samples > 1) asked.logprobs = many ? 0 : true; // by which tokens are counted
  if (mode) asked.mode = mode;
  for (const name of ["ratio", "temperature"]) if ($(name).value) asked[name] = Number($(name).value);
  async function run(signal) {
    grown.begin();
    const told = await api.ask(asked, grown.grow, signal);
    grown.end(told);
    grown.stop();
    title.textContent = told.kvquilt.mode ?? "no mode";
    below.replaceChildren(...results(told));
    return told;
  }
  return { root, grown, run };
}

function results({ usage, kvquilt }) {
  const times = kvquilt.timings_ms;
  const details = usage.prompt_tokens_details;
  return [
    kvquilt.note ? el("p", { class: "hint" }, kvquilt.note) : null,
    figures([
      ["First token", milliseconds(times.first_token)],
      ["Whole answer", milliseconds(times.total)],
      ["Prompt tokens", count(usage.prompt_tokens)],
      ["From stored KV", count(details.cached_tokens)],
      ["Computed", count(kvquilt.tokens.recomputed)],
    ]),
    el("h3", {}, "Sources"),
    ...sources(kvquilt),
    el("h3", {}, "Stages"),
    waterfall(times),
  ].filter(Boolean);
}

function sources({ citations, sources: found, context }) {
  const cited = new Set(citations.map((citation) => citation.source));
  const shown = el("div", { class: "source", hidden: true, tabindex: "0", role: "group", "aria-label": "Text of the source" });
  const order = [...cited, ...found.keys()].filter((source, at, list) => list.indexOf(source) === at);
  const list = el("ul", { class: "cites" }, ...order.map((at) => {
    const source = found[at];
    const show = () => { shown.hidden = false; shown.textContent = context?.[at]?.text ?? ""; };
    const name = `${at + 1} · ${[source.title || source.document_id, source.heading].filter(Boolean).join(", ")}`;
    const cites = cited.has(at);
    return el("li", {}, el("button", { type: "button", class: cites ? "cited" : "", onmouseenter: show, onfocus: show, onclick: show },
      name, cites ? el("span", {}, " — cited") : null));
  }));
  return [found.length ? list : tag("nothing was found"), shown];
}
