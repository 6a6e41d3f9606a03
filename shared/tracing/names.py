"""Names what spans say: attributes of OpenTelemetry's conventions where there is one, else our own.

Those of generative AI are of github.com/open-telemetry/semantic-conventions-genai, v0.1.0.
"""

from __future__ import annotations

PROVIDER_NAME = "kvquilt"

REQUEST_ID = "kvquilt.request_id"
TENANT = "kvquilt.tenant"
ERROR_TYPE = "error.type"
RPC_SYSTEM, RPC_METHOD = "rpc.system.name", "rpc.method"
HTTP_METHOD, HTTP_ROUTE = "http.request.method", "http.route"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
DATA_SOURCE = "gen_ai.data_source.id"
RETRIEVAL_TOP_K = "gen_ai.retrieval.top_k"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
MAX_TOKENS, TEMPERATURE, TOP_P = (
    "gen_ai.request.max_tokens",
    "gen_ai.request.temperature",
    "gen_ai.request.top_p",
)
SEED, NUM_ANSWERS = "gen_ai.request.seed", "gen_ai.request.choice.count"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CREATED_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
FIRST_TOKEN_S = "gen_ai.response.time_to_first_chunk"
# Content: only where the settings want it.
QUERY_TEXT, RETRIEVED_DOCUMENTS = "gen_ai.retrieval.query.text", "gen_ai.retrieval.documents"
INPUT_MESSAGES, OUTPUT_MESSAGES = "gen_ai.input.messages", "gen_ai.output.messages"

REUSE = "kvquilt.reuse"
NUM_QUESTIONS, QUESTION = "kvquilt.questions", "kvquilt.question"
NUM_CHUNKS, NUM_TOKENS, NUM_BYTES = "kvquilt.chunks", "kvquilt.tokens", "kvquilt.bytes"
NUM_FOUND, NUM_LOST = "kvquilt.chunks.found", "kvquilt.chunks.lost"
NUM_LATE = "kvquilt.chunks.late"
NUM_RESIDENT, NUM_LOADED, NUM_ENCODED = (
    "kvquilt.chunks.resident",
    "kvquilt.chunks.loaded",
    "kvquilt.chunks.encoded",
)
NUM_REUSED = "kvquilt.chunks.reused"
TIER, SOURCE = "kvquilt.tier", "kvquilt.source"
DOCUMENT, STAGE = "kvquilt.document", "kvquilt.stage"
