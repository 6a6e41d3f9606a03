// The state of every application as it tells it, its replicas with their queues, and what the tiers of the store hold.

import * as api from "./api.js";
import { $, count, counted, el, problem, tag } from "./dom.js";
import { read } from "./replicas.js";

const EVERY_MS = 2000;
let timer = null;

/** What can be told is shown, whoever else is away. */
export async function load() {
  const told = await Promise.allSettled([api.status().then(showServices), api.tiers().then(showTiers), api.metrics().then(showReplicas)]);
  $("cluster-time").textContent = `As of ${new Date().toLocaleTimeString("en-GB")}`;
  const failed = told.find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
}

export function start() {
  $("refresh").addEventListener("click", refresh);
  $("live").addEventListener("change", () => {
    clearTimeout(timer);
    timer = null;
    if ($("live").checked) void keep();
  });
}

async function refresh() {
  problem(null);
  try { await load(); } catch (error) { problem(error); }
}

async function keep() {
  if (!$("view-cluster").hidden) await refresh();
  if ($("live").checked) timer = setTimeout(keep, EVERY_MS);
}

function showServices(services) {
  $("services").replaceChildren(...services.map((one) => el("article", { class: "card" },
    el("div", { class: "title-row" }, el("h2", {}, one.service), one.ready ? tag("ready", "resident") : tag("not ready", "bad")),
    one.detail ? el("p", { class: "hint" }, one.detail) : null,
    el("dl", { class: "facts" }, ...Object.entries(one.facts).sort().flatMap(([name, value]) =>
      [el("dt", {}, name.replaceAll("_", " ")), el("dd", { "data-fact": `${one.service}.${name}` }, value)])))));
}

function showTiers({ data, num_unreachable: away }) {
  $("tiers").replaceChildren(...data.map(row));
  $("tiers-note").textContent = away ? `Without the tiers of ${counted(away, "node")} that did not answer` : "";
}

function showReplicas(text) {
  const { replicas, silent } = read(text);
  $("replicas").replaceChildren(...replicas.map(replica));
  const missing = silent ? `, without ${count(silent)} that did not answer` : "";
  $("replicas-note").textContent = `${counted(replicas.length, "process", "processes")} of the machine that this gateway runs on${missing}`;
}

function replica({ service, name, running, waiting, chunks, bytes: resident, capacity, memory }) {
  const cell = (what, value, shown = count) => el("td", { "data-figure": what }, value === undefined ? "–" : shown(value));
  return el("tr", { "data-replica": name }, el("th", { scope: "row" }, service), el("td", { class: "name" }, name),
    cell("running", running), cell("waiting", waiting), cell("chunks", chunks), cell("bytes", resident, bytes),
    el("td", {}, capacity ? el("meter", { "aria-label": `room for resident KV of ${name} in use`, max: capacity, value: resident ?? 0 }) : ""),
    cell("memory", memory, bytes));
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
