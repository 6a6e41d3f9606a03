// Draws the stages of one request. Lengths are the API's figures. Where stages stand follows from how a request
// runs: retrieval begins at once, decoding behind the first token, and the others end where the next begins.

import { el, milliseconds } from "./dom.js";

const BEFORE_FIRST_TOKEN = ["queue", "load", "select", "select_wait", "prefill"];
const NAMES = { retrieve: "retrieve", queue: "queue", load: "load", select: "select", select_wait: "wait for selection", prefill: "prefill", decode: "decode" };

export function stages(times) {
  const placed = [{ stage: "retrieve", begin: 0, ms: times.retrieve }];
  let at = Math.max(times.retrieve, times.first_token - times.prefill - times.select_wait - Math.max(times.load, times.select) - times.queue);
  for (const stage of BEFORE_FIRST_TOKEN) {
    const ms = times[stage];
    if (stage === "load") placed.push({ stage, begin: at, ms });
    else if (stage === "select") { placed.push({ stage, begin: at, ms }); at += Math.max(times.load, ms); }
    else { placed.push({ stage, begin: at, ms }); at += ms; }
  }
  placed.push({ stage: "decode", begin: times.first_token, ms: times.decode });
  return placed;
}

export function waterfall(times) {
  const placed = stages(times);
  const whole = Math.max(times.total, ...placed.map(({ begin, ms }) => begin + ms), 0.001);
  const rows = placed.flatMap(({ stage, begin, ms }) => {
    const bar = el("span", { class: `bar ${stage}` });
    bar.style.setProperty("left", `${(begin / whole) * 100}%`);
    bar.style.setProperty("width", `${(ms / whole) * 100}%`);
    return [el("span", { class: "name" }, NAMES[stage]), el("span", { class: "track", "aria-hidden": "true" }, ms > 0 ? bar : null),
      el("span", { class: "ms", "data-stage": stage }, milliseconds(ms))];
  });
  return el("div", { class: "fall" }, ...rows);
}
