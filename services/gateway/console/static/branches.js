// Shows the branches of an answer as they grow: one per sample of each question, all over one context.

import { counted, el, tag } from "./dom.js";

const ENDS = { stop: "ended", length: "cut at the most tokens" };

/** `begin` when it is asked, `grow` takes the stream's pieces, `end` what was told last, `stop`: nothing follows. */
export function branches(questions, samples) {
  const total = questions.length * samples;
  if (total === 1) return alone();
  const all = Array.from({ length: total }, (_, choice) => branch(choice, choice % samples));
  const ended = () => all.filter((one) => one.ended).length;
  const root = el("p", { class: "context" }, "One context for all of them");
  const state = el("p", { class: "hint", role: "status" }, "");
  const tell = (what) => { if (state.textContent !== what) state.textContent = what; };
  const groups = questions.map((question, at) => el("li", {},
    questions.length > 1 ? el("h3", {}, question) : null,
    el("ul", { class: "samples", "aria-label": `Answers to: ${question}` }, ...all.slice(at * samples, (at + 1) * samples).map((one) => one.root))));
  return {
    root: el("div", { class: "tree" }, root, el("ul", { class: "questions" }, ...groups), state),
    begin() { for (const one of all) one.begin(); },
    grow(piece) {
      all[piece.choice].grow(piece);
      tell(`${ended()} of ${total} branches have ended`);
    },
    end({ usage, kvquilt }) {
      root.textContent = `One context: ${counted(kvquilt.sources.length, "chunk")}; ${counted(usage.prompt_tokens, "token")} with prefix and all questions`;
      for (const one of all) one.cite(kvquilt.citations);
      tell(kvquilt.refused ? "No branch was begun" : `${total} branches, ${counted(usage.completion_tokens, "token")}`);
    },
    stop() { for (const one of all) one.stop(); },
  };
}

function alone() {
  const text = el("p", { class: "answer", "aria-live": "polite" });
  return { root: text, begin: () => busy(text, true), grow: (piece) => append(text, piece.text), end() {}, stop: () => busy(text, false) };
}

function branch(choice, sample) {
  const text = el("p", { class: "answer" });
  const state = tag("waiting");
  const tokens = el("span", { class: "tokens" }, counted(0, "token"));
  const likely = el("span", { class: "likely", title: "mean of its tokens" }, "");
  const sources = el("span", { class: "from" }, "");
  const logprobs = [];
  const one = {
    ended: false,
    root: el("li", { class: "branch", "data-choice": String(choice) },
      el("div", { class: "tags" }, tag(`sample ${sample + 1}`), state, tokens, likely), text, sources),
    grow(piece) {
      append(text, piece.text);
      logprobs.push(...piece.logprobs);
      tokens.textContent = counted(logprobs.length, "token");
      if (logprobs.length) likely.textContent = `log-probability ${(logprobs.reduce((sum, one) => sum + one, 0) / logprobs.length).toFixed(2)}`;
      if (piece.finish === null) { state.textContent = "growing"; return; }
      one.ended = true;
      state.textContent = ENDS[piece.finish] ?? piece.finish;
      one.stop();
    },
    cite(citations) {
      const from = citations.filter((citation) => citation.choice === choice).map((citation) => citation.source + 1);
      sources.textContent = from.length ? `cites ${from.join(", ")}` : "";
    },
    begin: () => busy(text, true),
    stop: () => busy(text, false),
  };
  return one;
}

const busy = (text, is) => text.classList.toggle("busy", is);
const append = (to, text) => to.append(to.textContent ? text : text.trimStart());
