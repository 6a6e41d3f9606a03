// Shows the view that the address names, the theme, and takes the key.

import { useKey } from "./api.js";
import * as ask from "./ask.js";
import * as cluster from "./cluster.js";
import * as collections from "./collections.js";
import * as context from "./context.js";
import { $, problem } from "./dom.js";

const VIEWS = { ask, context, collections, cluster };
const THEMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = "system";

function paint() {
  document.documentElement.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
  $("theme").textContent = `Theme: ${theme}`;
}

async function show() {
  const asked = location.hash.slice(1);
  if (asked === "main") return;
  const name = asked in VIEWS ? asked : "ask";
  for (const view of Object.keys(VIEWS)) $(`view-${view}`).hidden = view !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  problem(null);
  try { await VIEWS[name].load?.(); } catch (error) { problem(error); }
}

dark.addEventListener("change", paint);
$("theme").addEventListener("click", () => { theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]; paint(); });
$("key-form").addEventListener("submit", (event) => { event.preventDefault(); useKey($("key").value); void show(); });
addEventListener("hashchange", () => void show());
for (const view of Object.values(VIEWS)) view.start();
paint();
void show();
