// Speaks to the gateway. The key lives in this module's memory alone: a reload forgets it.

let key = "";
export const useKey = (given) => { key = given.trim(); };

async function call(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The gateway does not answer. Is it running?");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `The gateway answered ${response.status}.`);
  }
  return response;
}

const json = async (path, options) => (await call(path, options)).json();
const post = (path, body) => json(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const at = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

async function all(path) {
  const found = [];
  for (let after = ""; ;) {
    const page = await json(`${path}?limit=100${after && `&after=${encodeURIComponent(after)}`}`);
    found.push(...page.data);
    if (!page.has_more) return found;
    after = page.data.at(-1).id;
  }
}

export const models = async () => (await json("/v1/models")).data;
export const status = async () => (await json("/v1/status")).data;
export const tiers = () => json("/v1/tiers");
export const metrics = async () => (await call("/metrics")).text();
export const stores = () => all("/v1/vector_stores");
export const createStore = (name) => post("/v1/vector_stores", { name });
export const deleteStore = (id) => json(at("vector_stores", id), { method: "DELETE" });
export const members = (id) => all(at("vector_stores", id, "files"));
export const member = (id, file) => json(at("vector_stores", id, "files", file));
export const detach = (id, file) => json(at("vector_stores", id, "files", file), { method: "DELETE" });
export const attach = (id, file) => post(at("vector_stores", id, "files"), { file_id: file });

export function upload(file) {
  const form = new FormData();
  form.append("purpose", "assistants");
  form.append("file", file);
  return json("/v1/files", { method: "POST", body: form });
}

/** Asks one question (`messages`) or several (`prompt`); `onPiece` gets what grows: `{ choice, text, logprobs,
 * finish }`, `finish` null until the choice ends. Resolves to what came last: `{ usage, kvquilt }`. */
export async function ask(asked, onPiece, signal) {
  const body = { ...asked, stream: true, stream_options: { include_usage: true } };
  const response = await call(asked.prompt ? "/v1/completions" : "/v1/chat/completions", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  });
  const told = { usage: null, kvquilt: null };
  let whole = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") { whole = true; break; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    for (const choice of chunk.choices) onPiece(piece(choice));
    if (chunk.kvquilt) told.kvquilt = chunk.kvquilt;
    if (chunk.usage) told.usage = chunk.usage;
  }
  if (!whole || !told.kvquilt) throw new Error("The answer broke off. Ask again.");
  return told;
}

function piece({ index, delta, text, logprobs, finish_reason: finish }) {
  return {
    choice: index, text: (delta ? delta.content : text) ?? "", finish: finish ?? null,
    logprobs: logprobs?.token_logprobs ?? logprobs?.content?.map((token) => token.logprob) ?? [],
  };
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) if (frame.startsWith("data: ")) yield frame.slice(6);
  }
}
