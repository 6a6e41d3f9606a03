"""The engine: generation from placed segments of stored KV, as a plain library (torch and transformers only).

One idea carries it: a segment's keys stand at local positions, a request places segments at offsets, and a
query at position p sees key j of a segment at offset o as if it stood at o + j, because RoPE is a rotation
group. Nothing about a segment depends on a request, so one resident copy serves all. Read ``kv.segment``
(what is placed), ``kv.branch`` (what sees it), ``attention`` (how), ``model.model`` (how a stock model is
driven), then ``engine`` (the step loop) and ``jobs.answers`` (what tokens become); ``scheduler`` and
``kv.residency`` decide, ``kv.loader`` moves KV in and out.
"""

from shared.engine.decoding.live_forest import LiveForest
from shared.engine.engine import Engine
from shared.engine.kv.source import NoSource, SegmentSource, StoredSegment
from shared.engine.model.loader import load_model, wrap_model
from shared.engine.model.model import LoadedModel
from shared.engine.model.spec import ModelSpec
from shared.engine.stats import EngineStats
from shared.engine_config import EngineConfig

__all__ = [
    "Engine",
    "EngineConfig",
    "EngineStats",
    "LiveForest",
    "LoadedModel",
    "ModelSpec",
    "NoSource",
    "SegmentSource",
    "StoredSegment",
    "load_model",
    "wrap_model",
]
