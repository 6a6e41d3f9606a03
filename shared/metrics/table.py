"""Lists every metric of kvquilt. Docs, dashboards and alerts are tested against this list.

Whoever measures something new adds a row. Those marked ``vllm`` have vLLM's name, meaning and buckets, so
that its dashboards and gateways read them. Times in seconds, sizes in bytes. A counter's name gets
``_total``. (Longer than other modules: it is one table.)
"""

from __future__ import annotations

from shared.metrics.metric import MetricKind, MetricSpec

ALL: list[MetricSpec] = []

_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_DECISION = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
_BRANCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

EVERY = ("kv_store", "retrieval", "generator", "selector", "ingestion", "gateway")
_GENERATOR, _GATEWAY, _STORE = ("generator",), ("gateway",), ("kv_store",)


def _listed(metric: MetricSpec) -> MetricSpec:
    ALL.append(metric)
    return metric


def counter(
    name: str,
    unit: str,
    text: str,
    applications: tuple[str, ...],
    labels: tuple[str, ...] = (),
    vllm: bool = False,
    by_tenant: bool = False,
) -> MetricSpec:
    return _listed(
        MetricSpec(name, MetricKind.COUNTER, unit, text, applications, labels, vllm=vllm, by_tenant=by_tenant)
    )


def gauge(
    name: str,
    unit: str,
    text: str,
    applications: tuple[str, ...],
    labels: tuple[str, ...] = (),
    vllm: bool = False,
) -> MetricSpec:
    return _listed(MetricSpec(name, MetricKind.GAUGE, unit, text, applications, labels, vllm=vllm))


def histogram(
    name: str,
    unit: str,
    text: str,
    applications: tuple[str, ...],
    buckets: tuple[float, ...],
    labels: tuple[str, ...] = (),
    vllm: bool = False,
) -> MetricSpec:
    return _listed(MetricSpec(name, MetricKind.HISTOGRAM, unit, text, applications, labels, buckets, vllm))


# --- every service -----------------------------------------------------------------------------------------

RPCS = counter(
    "rpcs",
    "calls",
    "Calls that ended, by method and by what came of them: OK, or an error's code.",
    EVERY,
    ("method", "code"),
)
RPC_SECONDS = histogram(
    "rpc_seconds", "seconds", "How long calls took, to the end of a stream.", EVERY, _SHORT, ("method",)
)

# --- the engine, in vLLM's words ---------------------------------------------------------------------------

REQUESTS_RUNNING = gauge(
    "num_requests_running",
    "requests",
    "Requests that the engine has admitted, prefills of documents included.",
    _GENERATOR,
    vllm=True,
)
REQUESTS_WAITING = gauge(
    "num_requests_waiting", "requests", "Requests that wait for room.", _GENERATOR, vllm=True
)
WAITING_BY_REASON = gauge(
    "num_requests_waiting_by_reason",
    "requests",
    "The same by reason: capacity (not admitted yet), deferred (admitted, and paused for others).",
    _GENERATOR,
    ("reason",),
    vllm=True,
)
KV_CACHE_USAGE = gauge(
    "kv_cache_usage_perc",
    "ratio",
    "Share of the room for KV that requests use now, 0 to 1. Chunks that nobody uses are evictable and do "
    "not count.",
    _GENERATOR,
    vllm=True,
)
CACHE_CONFIG = gauge(
    "cache_config_info",
    "1",
    "Always 1; its labels say how large the room for KV is. The engine has no blocks; one counts as 16 "
    "tokens.",
    _GENERATOR,
    ("block_size", "num_gpu_blocks"),
    vllm=True,
)
PREEMPTIONS = counter(
    "num_preemptions", "requests", "Requests that were paused to make room.", _GENERATOR, vllm=True
)
DRAFTS = counter(
    "spec_decode_num_drafts",
    "drafts",
    "Guesses of how answers go on, made of their context and verified in one step.",
    _GENERATOR,
    vllm=True,
)
DRAFT_TOKENS = counter(
    "spec_decode_num_draft_tokens", "tokens", "Tokens of these guesses.", _GENERATOR, vllm=True
)
ACCEPTED_TOKENS = counter(
    "spec_decode_num_accepted_tokens", "tokens", "Those of them that were generated.", _GENERATOR, vllm=True
)
LATE_CHUNKS = counter(
    "late_chunks",
    "chunks",
    "Chunks that were computed although they may be stored, since their KV came later than that.",
    _GENERATOR,
)
LATE_TOKENS = counter("late_tokens", "tokens", "Tokens of these chunks.", _GENERATOR)
LATE_TOKENS_IN_VAIN = counter(
    "late_tokens_in_vain",
    "tokens",
    "Tokens that were computed because their KV came late, and then were loaded first.",
    _GENERATOR,
)
PREFIX_QUERIES = counter(
    "prefix_cache_queries", "tokens", "Tokens of prompts, all looked for in memory.", _GENERATOR, vllm=True
)
PREFIX_HITS = counter(
    "prefix_cache_hits", "tokens", "Those of them whose KV was in memory.", _GENERATOR, vllm=True
)
EXTERNAL_QUERIES = counter(
    "external_prefix_cache_queries",
    "tokens",
    "Tokens of prompts whose KV was not in memory.",
    _GENERATOR,
    vllm=True,
)
EXTERNAL_HITS = counter(
    "external_prefix_cache_hits",
    "tokens",
    "Those of them whose KV was loaded from the store.",
    _GENERATOR,
    vllm=True,
)
PROMPT_TOKENS = counter("prompt_tokens", "tokens", "Tokens of prompts.", _GENERATOR, vllm=True)
PROMPT_TOKENS_BY_SOURCE = counter(
    "prompt_tokens_by_source",
    "tokens",
    "The same by where their KV came from: local_compute, local_cache_hit (memory), external_kv_transfer "
    "(the store).",
    _GENERATOR,
    ("source",),
    vllm=True,
)
PROMPT_TOKENS_CACHED = counter(
    "prompt_tokens_cached",
    "tokens",
    "Tokens of prompts whose KV was not computed, but in memory or in the store.",
    _GENERATOR,
    vllm=True,
)
GENERATION_TOKENS = counter("generation_tokens", "tokens", "Generated tokens.", _GENERATOR, vllm=True)
REQUEST_SUCCESS = counter(
    "request_success",
    "answers",
    "Answers that ended, by why: stop, length; abort (the caller left or time was up), error.",
    _GENERATOR,
    ("finished_reason",),
    vllm=True,
)
TIME_TO_FIRST_TOKEN = histogram(
    "time_to_first_token_seconds",
    "seconds",
    "From a request's arrival in the generator to its first token.",
    _GENERATOR,
    _FIRST_TOKEN,
    vllm=True,
)
INTER_TOKEN_LATENCY = histogram(
    "inter_token_latency_seconds",
    "seconds",
    "Between two tokens of one answer.",
    _GENERATOR,
    _PER_TOKEN,
    vllm=True,
)
TIME_PER_OUTPUT_TOKEN = histogram(
    "request_time_per_output_token_seconds",
    "seconds",
    "Mean time between the tokens of a request's longest answer.",
    _GENERATOR,
    _PER_TOKEN,
    vllm=True,
)
E2E_LATENCY = histogram(
    "e2e_request_latency_seconds",
    "seconds",
    "From a request's arrival in the generator to its end.",
    _GENERATOR,
    _REQUEST,
    vllm=True,
)
QUEUE_TIME = histogram(
    "request_queue_time_seconds",
    "seconds",
    "Until the engine admitted the request.",
    _GENERATOR,
    _REQUEST,
    vllm=True,
)
INFERENCE_TIME = histogram(
    "request_inference_time_seconds",
    "seconds",
    "From a request's admission to its end.",
    _GENERATOR,
    _REQUEST,
    vllm=True,
)
PREFILL_TIME = histogram(
    "request_prefill_time_seconds",
    "seconds",
    "From a request's admission to its first token: loading KV, selecting tokens and computing.",
    _GENERATOR,
    _REQUEST,
    vllm=True,
)
DECODE_TIME = histogram(
    "request_decode_time_seconds",
    "seconds",
    "From a request's first token to its end.",
    _GENERATOR,
    _REQUEST,
    vllm=True,
)
REQUEST_PROMPT_TOKENS = histogram(
    "request_prompt_tokens", "tokens", "Tokens of one prompt.", _GENERATOR, _TOKENS, vllm=True
)
REQUEST_GENERATION_TOKENS = histogram(
    "request_generation_tokens", "tokens", "Tokens generated for one request.", _GENERATOR, _TOKENS, vllm=True
)
PREFILL_COMPUTED = histogram(
    "request_prefill_kv_computed_tokens",
    "tokens",
    "Tokens of one prompt whose KV was computed.",
    _GENERATOR,
    _TOKENS,
    vllm=True,
)

# --- the engine, in ours -----------------------------------------------------------------------------------

ENGINE_STEPS = counter("engine_steps", "steps", "Steps of the engine.", _GENERATOR)
RESIDENT_CHUNKS = gauge("resident_chunks", "chunks", "Chunks whose KV is in the engine's memory.", _GENERATOR)
RESIDENT_BYTES = gauge(
    "resident_bytes", "bytes", "KV of chunks and prefixes in the engine's memory.", _GENERATOR
)
RESIDENT_CAPACITY_BYTES = gauge(
    "resident_capacity_bytes", "bytes", "How much of it may be there.", _GENERATOR
)
PRIVATE_BYTES = gauge("private_bytes", "bytes", "KV of questions and answers.", _GENERATOR)
CONVERSATION_TURNS = counter(
    "conversation_turns",
    "requests",
    "Requests with earlier turns by whether any KV of these was kept: hit, miss.",
    _GENERATOR,
    ("outcome",),
)
CONVERSATION_TOKENS = counter(
    "conversation_tokens", "tokens", "Tokens of earlier turns whose KV was kept and used.", _GENERATOR
)
CONVERSATION_BYTES = gauge("conversation_bytes", "bytes", "KV of earlier turns that is kept.", _GENERATOR)
REQUESTS_BY_MODE = counter(
    "requests",
    "requests",
    "Completed requests by the reuse mode that they ran in.",
    _GENERATOR,
    ("mode",),
)
LOAD_SECONDS = histogram(
    "load_seconds",
    "seconds",
    "Until a request's stored KV was there; of those that had to load some.",
    _GENERATOR,
    _SHORT,
)
TIER_LOAD_SECONDS = histogram(
    "tier_load_seconds",
    "seconds",
    "From the first chunk that a request loaded from a tier (memory, disk, objects, peer) to the last.",
    _GENERATOR,
    _SHORT,
    ("tier",),
)
LOADED_CHUNKS = counter("loaded_chunks", "chunks", "Chunks that requests loaded.", _GENERATOR, ("tier",))
LOADED_BYTES = counter("loaded_bytes", "bytes", "Size of their KV in the engine.", _GENERATOR, ("tier",))
SELECT_SECONDS = histogram(
    "select_seconds", "seconds", "Until the selector had chosen what to compute anew.", _GENERATOR, _SHORT
)
SELECT_WAIT_SECONDS = histogram(
    "select_wait_seconds",
    "seconds",
    "Of that, what the request waited when all its KV was there.",
    _GENERATOR,
    _SHORT,
)
RECOMPUTED_TOKENS = counter(
    "recomputed_tokens",
    "tokens",
    "Tokens of contexts that were chosen to be computed anew.",
    _GENERATOR,
    ("mode",),
)
RECOMPUTE_SHARE = histogram(
    "recompute_ratio",
    "ratio",
    "Share of a request's context that was computed anew, of modes that choose tokens.",
    _GENERATOR,
    _SHARES,
    ("mode",),
)
ISOLATED_TOKENS = counter(
    "isolated_tokens",
    "tokens",
    "Tokens of chunks that were used without what stands in front of them, because it could not be had.",
    _GENERATOR,
)
FOREST_WIDTH = histogram(
    "forest_width", "branches", "Branches of a request that grew over one context.", _GENERATOR, _BRANCHES
)
PREFILLED_CHUNKS = counter(
    "prefilled_chunks",
    "chunks",
    "Chunks of documents whose KV is durable: computed, or existed before.",
    _GENERATOR,
    ("outcome",),
)
VERDICT = gauge(
    "verdict",
    "1",
    "Is 1 of the state that the verdict is in by which mode auto goes: in_force, suspended, expired, none.",
    _GENERATOR,
    ("state",),
)

# --- where questions go by their chunks ---------------------------------------------------------------------

ROUTE_DECISIONS = counter(
    "route_decisions",
    "questions",
    "Questions that were sent to a replica by their chunks, by why it was this one (docs/routing.md); told "
    "by whoever sends them.",
    _GENERATOR,
    ("reason",),
)
ROUTE_SECONDS = histogram(
    "route_seconds", "seconds", "How long choosing a replica took.", _GENERATOR, _DECISION
)
ROUTE_REPORTS = counter(
    "route_reports",
    "reports",
    "What routers heard of what replicas hold, by what came of it: applied, old, snapshot_needed, unknown, "
    "malformed.",
    _GENERATOR,
    ("outcome",),
)
ROUTED_CHUNKS = counter(
    "routed_chunks",
    "chunks",
    "Chunks of questions by whether they were in the engine's memory when the question came: hit, miss.",
    _GENERATOR,
    ("outcome",),
)
ROUTE_STALE = counter(
    "route_stale",
    "chunks",
    "Chunks that the router took to be there, and that were not.",
    _GENERATOR,
)

# --- the gateway -------------------------------------------------------------------------------------------

ANSWERS = counter(
    "answers",
    "answers",
    "Questions that ended: OK, REFUSED (too little evidence in the documents), CANCELLED (the caller left), "
    "or an error's code. Mode: what it really ran in; none where it came to none.",
    _GATEWAY,
    ("mode", "code"),
    by_tenant=True,
)
ANSWER_TOKENS = counter(
    "answer_tokens",
    "tokens",
    "Tokens of answered questions, by kind: prompt, cached (of the prompt, not computed), generated.",
    _GATEWAY,
    ("kind",),
    by_tenant=True,
)
ANSWERS_RUNNING = gauge("answers_running", "answers", "Questions that are being answered.", _GATEWAY)
ANSWER_FIRST_TOKEN = histogram(
    "answer_time_to_first_token_seconds",
    "seconds",
    "From a question's arrival in the gateway to the first token of its answer, retrieval included.",
    _GATEWAY,
    _FIRST_TOKEN,
    ("mode",),
)
ANSWER_SECONDS = histogram(
    "answer_seconds",
    "seconds",
    "From a question's arrival in the gateway to the end of its answer.",
    _GATEWAY,
    _REQUEST,
    ("mode",),
)
RETRIEVE_SECONDS = histogram(
    "retrieve_seconds", "seconds", "Until the chunks for a question were found.", _GATEWAY, _SHORT
)
FOLLOW_UPS = counter(
    "follow_ups",
    "questions",
    "Questions that followed others, by what was searched: rewritten (by the model), joined, last (as it "
    "is), failed (as it is, since it could not be rewritten).",
    _GATEWAY,
    ("searched",),
)
SERVICE_READY = gauge(
    "service_ready",
    "1",
    "Is 1 while the service says that it is ready, 0 while it does not, or does not answer.",
    _GATEWAY,
    ("service",),
)
SERVICE_IMPAIRED = gauge(
    "service_impaired",
    "1",
    "Is 1 while the service has something to tell an operator; `kvquilt status` says what.",
    _GATEWAY,
    ("service",),
)

# --- the store: every node's agent -------------------------------------------------------------------------

STORE_CHUNKS = gauge("store_chunks", "chunks", "Chunks in a node's tier.", _STORE, ("tier",))
STORE_BYTES = gauge("store_bytes", "bytes", "Their size.", _STORE, ("tier",))
STORE_CAPACITY = gauge(
    "store_capacity_bytes", "bytes", "What the tier may hold; 0: as much as fits.", _STORE, ("tier",)
)
STORE_PINNED = gauge("store_pinned_bytes", "bytes", "Of these, what is never evicted.", _STORE, ("tier",))
STORE_ROOM = gauge(
    "store_room_bytes",
    "bytes",
    "What the disk with the node's KV can still take, with copies evicted that may go.",
    _STORE,
)
STORE_DISK = gauge("store_disk_bytes", "bytes", "Size of that disk.", _STORE)
STORE_DOCUMENTS = gauge("store_documents", "documents", "Documents; told by the home node alone.", _STORE)
STORE_DAMAGED = gauge(
    "store_damaged_manifests",
    "documents",
    "Documents whose manifest is damaged in both copies: set aside, and nothing is collected meanwhile.",
    _STORE,
)
STORE_SURE = gauge(
    "store_documents_sure",
    "1",
    "Is 1 while it is known what all documents refer to, and can be changed; 0 while the object store or the "
    "disk does not answer. Told by the home node alone.",
    _STORE,
)
CHUNK_OPENS = counter("chunk_opens", "chunks", "Chunks that readers asked the node's agent for.", _STORE)
CHUNK_HITS = counter(
    "chunk_hits", "chunks", "Those of them that were in the node's own tier.", _STORE, ("tier",)
)
CHUNK_FETCHES = counter(
    "chunk_fetches", "chunks", "Chunks brought to the node, by where from.", _STORE, ("source",)
)
CHUNK_FETCHED_BYTES = counter("chunk_fetched_bytes", "bytes", "Their size.", _STORE, ("source",))
CHUNK_EVENTS = counter(
    "chunk_events",
    "chunks",
    "What else happened to chunks: prefetches, coalesced, direct_opens (whoever asked reads from the object "
    "store), failed_fetches, promotions, uploads, damaged_ and where.",
    _STORE,
    ("event",),
)
EVICTIONS = counter("evictions", "chunks", "Copies that made room for others.", _STORE)

# --- ingestion ---------------------------------------------------------------------------------------------

INGESTED_DOCUMENTS = counter(
    "ingested_documents",
    "documents",
    "Documents that were gone through: stored, unchanged, failed.",
    ("ingestion",),
    ("outcome",),
    by_tenant=True,
)
INGESTED_CHUNKS = counter(
    "ingested_chunks", "chunks", "Chunks of stored documents.", ("ingestion",), by_tenant=True
)
INGESTED_TOKENS = counter("ingested_tokens", "tokens", "Their tokens.", ("ingestion",), by_tenant=True)

# --- the selector ------------------------------------------------------------------------------------------

SELECTOR_WAITING = gauge(
    "selector_waiting", "requests", "Requests that wait for the auxiliary model.", ("selector",)
)
SELECTOR_RESIDENT_BYTES = gauge("selector_resident_bytes", "bytes", "Auxiliary KV in memory.", ("selector",))
SELECTOR_CHUNKS = counter(
    "selector_chunks",
    "chunks",
    "Chunks whose auxiliary KV was wanted, or made: resident, loaded, encoded, written.",
    ("selector",),
    ("event",),
)

# --- what gathers them -------------------------------------------------------------------------------------

METRICS_PROCESSES = gauge(
    "metrics_processes",
    "processes",
    "Processes of the machine by whether they told their metrics: answered, silent.",
    ("node",),
    ("state",),
)
