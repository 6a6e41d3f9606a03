// The state of every application as it tells it, and what the tiers of the store hold.

import * as api from "./api.js";
import { $, count, el, problem, tag } from "./dom.js";

export async function load() {
  const [services, tiers] = await Promise.all([api.status(), api.tiers()]);
  $("tiers").replaceChildren(...tiers.map(row));
  $("services").replaceChildren(...services.map((one) => el("article", { class: "card" },
    el("div", { class: "title-row" }, el("h2", {}, one.service), one.ready ? tag("ready", "resident") : tag("not ready", "bad")),
    one.detail ? el("p", { class: "hint" }, one.detail) : null,
    el("dl", { class: "facts" }, ...Object.entries(one.facts).sort().flatMap(([name, value]) =>
      [el("dt", {}, name.replaceAll("_", " ")), el("dd", { "data-fact": `${one.service}.${name}` }, value)])))));
  $("cluster-time").textContent = `As of ${new Date().toLocaleTimeString("en-GB")}`;
}

export function start() {
  $("refresh").addEventListener("click", async () => {
    problem(null);
    try { await load(); } catch (error) { problem(error); }
  });
}

function row(tier) {
  const limit = tier.capacity_bytes;
  return el("tr", {}, el("th", { scope: "row" }, tier.tier), el("td", {}, tier.node ? tier.node.slice(0, 8) : "object store"),
    el("td", {}, count(tier.num_chunks)), el("td", {}, bytes(tier.num_bytes)), el("td", {}, limit ? bytes(limit) : "none"),
    el("td", {}, limit ? el("meter", { "aria-label": `${tier.tier} in use`, max: limit, value: tier.num_bytes }) : ""));
}

function bytes(number) {
  const step = number < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(number) / 10));
  return `${(number / 1024 ** step).toFixed(step ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}
