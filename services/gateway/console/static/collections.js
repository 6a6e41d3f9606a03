// Collections and their documents: list, create, drop files in, delete.

import * as api from "./api.js";
import { $, count, el, problem, tag } from "./dom.js";

const POLL_MS = 700;
let chosen = null;

export async function load() {
  const stores = await api.stores();
  $("stores").replaceChildren(...stores.map((store) => el("li", {},
    el("button", { type: "button", class: "grow", "aria-pressed": String(store.id === chosen), onclick: () => choose(store.id) }, store.name || store.id),
    tag(`${count(store.file_counts.completed)} documents`),
    store.file_counts.failed ? tag(`${count(store.file_counts.failed)} failed`, "bad") : null)));
  if (!stores.length) $("stores").append(el("li", { class: "empty" }, "None yet: create one below."));
  if (!stores.some((store) => store.id === chosen)) chosen = null;
  $("store-panel").hidden = chosen === null;
  if (chosen !== null) await showMembers();
}

const choose = (id) => attempt(async () => { chosen = id; $("uploads").replaceChildren(); await load(); });

async function showMembers() {
  if ($("store-title").textContent !== chosen) $("members").replaceChildren(); // another's
  $("store-title").textContent = chosen;
  const id = chosen;
  const found = await api.members(id);
  if (id !== chosen) return;
  $("members").replaceChildren(...found.map((member) => el("li", {},
    el("span", { class: "grow" }, member.document_id, member.last_error ? el("span", { class: "why" }, member.last_error.message) : null),
    tag(member.status.replace("_", " "), member.status === "failed" ? "bad" : member.status === "completed" ? "resident" : ""),
    el("button", { type: "button", class: "danger", "aria-label": `Delete ${member.document_id}`,
      onclick: () => attempt(async () => { await api.detach(id, member.id); await load(); }) }, "Delete"))));
  if (!found.length) $("members").append(el("li", { class: "empty" }, "No documents yet."));
}

async function attempt(work) {
  problem(null);
  try { await work(); } catch (error) { problem(error); }
}

async function bring(files) {
  const id = chosen;
  for (const file of files) {
    const state = tag("uploading");
    const bar = el("progress", { "aria-label": `Progress of ${file.name}` });
    const row = el("li", {}, el("span", { class: "grow" }, file.name), bar, state);
    $("uploads").append(row);
    try {
      const kept = await api.upload(file);
      state.textContent = "ingesting";
      let member = await api.attach(id, kept.id);
      while (member.status === "in_progress") {
        await new Promise((done) => setTimeout(done, POLL_MS));
        member = await api.member(id, kept.id);
      }
      if (member.status !== "completed") throw new Error(member.last_error?.message ?? member.status);
      row.remove();
    } catch (error) {
      bar.remove();
      state.replaceWith(tag("failed", "bad"));
      row.firstChild.append(el("span", { class: "why" }, error.message));
    }
  }
  await load();
}

export function start() {
  const drop = $("drop");
  for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); void attempt(() => bring([...event.dataTransfer.files])); });
  $("upload").addEventListener("change", (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    void attempt(() => bring(files));
  });
  $("new-store").addEventListener("submit", (event) => {
    event.preventDefault();
    void attempt(async () => { chosen = (await api.createStore($("store-name").value)).id; $("store-name").value = ""; await load(); });
  });
  const armed = $("delete-store");
  armed.addEventListener("blur", () => { armed.textContent = "Delete collection"; });
  armed.addEventListener("click", () => {
    if (armed.textContent !== "Really delete?") { armed.textContent = "Really delete?"; return; }
    armed.textContent = "Delete collection";
    void attempt(async () => { await api.deleteStore(chosen); chosen = null; await load(); });
  });
}
