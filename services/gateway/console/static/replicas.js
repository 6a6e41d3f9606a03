// Reads what every process tells of itself, in Prometheus's text: replicas, their queues and what is resident there.

const LINE = /^([A-Za-z_:][\w:]*)\{(.*)\} (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };
const SERIES = {
  process_resident_memory_bytes: "memory",
  kvquilt_answers_running: "running", kvquilt_num_requests_running: "running",
  kvquilt_num_requests_waiting: "waiting", kvquilt_selector_waiting: "waiting",
  kvquilt_resident_chunks: "chunks", kvquilt_resident_bytes: "bytes", kvquilt_resident_capacity_bytes: "capacity",
};

/** `replicas`: by service and name, each with its `service`, `name` and those of the figures that it tells;
 * `silent`: how many processes did not answer. */
export function read(text) {
  const replicas = new Map();
  let silent = 0;
  for (const line of text.split("\n")) {
    const [, name, inner, value] = LINE.exec(line) ?? [];
    if (!(name in SERIES) && name !== "kvquilt_metrics_processes") continue;
    const labels = Object.fromEntries(Array.from(inner.matchAll(LABEL), ([, label, given]) => [label, given.replace(/\\[n"\\]/g, (pair) => ESCAPED[pair])]));
    if (name === "kvquilt_metrics_processes") { if (labels.state === "silent") silent = Number(value); continue; }
    if (!labels.application) continue;
    const key = JSON.stringify([labels.application, labels.replica]);
    if (!replicas.has(key)) replicas.set(key, { service: labels.application, name: labels.replica });
    replicas.get(key)[SERIES[name]] = Number(value);
  }
  return { replicas: [...replicas.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, one]) => one), silent };
}
