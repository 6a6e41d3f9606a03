"""Lists the benchmarks that one command runs, with sizes at which a machine of two cores ends in hours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Benchmark:
    """``module``: below ``load_tests``; ``options``: besides ``--json``. ``about``: what is measured, against
    what, for the page's readers."""

    name: str
    module: str
    about: str
    options: tuple[str, ...] = ()


BENCHMARKS = (
    Benchmark("engine", "engine", "the engine against stock transformers, at Qwen2-0.5B's shape"),
    Benchmark(
        "engine-smollm2",
        "engine",
        "the engine against stock transformers, at SmolLM2-135M's shape",
        ("--shape", "smollm2-135m"),
    ),
    Benchmark("recompute", "recompute", "CacheClip, selection included, against the engine's own `full`"),
    Benchmark(
        "kv_store", "kv_store", "stored KV: opened, loaded and used, against plain reads and a bare client"
    ),
    Benchmark(
        "peer_transfer", "peer_transfer", "chunks from node to node: gRPC, Arrow Flight, a plain socket"
    ),
    Benchmark(
        "service",
        "service",
        "a whole service under open-loop load, mode against mode",
        ("--shape", "smollm2-135m", "--rate", "auto", "--reuse", "full,reordered", "--slo", "ttft:2x"),
    ),
    Benchmark("pasted", "pasted", "documents pasted into a message, the second time against the first"),
    Benchmark("encodings", "encodings", "lossy encodings of KV against exact KV: bytes and answers"),
    Benchmark("weights", "weights", "int8 weights against exact ones: bytes and answers"),
    Benchmark(
        "quality",
        "quality",
        "right answers in every mode of reuse, against everything computed",
        ("--minutes", "20"),
    ),
    Benchmark("retrieval", "retrieval", "whether a question's passage is found: dense, BM25, hybrid"),
    Benchmark("follow_ups", "follow_ups", "whether a follow-up's passage is found, by what is searched"),
    Benchmark("conversations", "conversations", "a tenth turn with what earlier ones kept, against without"),
    Benchmark(
        "routing",
        "routing",
        "routing by chunks in a simulated fleet, against two others",
        ("simulate", "--ci"),
    ),
    Benchmark("tenancy", "tenancy", "whether times tell a tenant which texts another one has"),
    Benchmark("metrics", "metrics", "what counting costs"),
    Benchmark("tracing", "tracing", "what tracing every stage costs, by pairs"),
    Benchmark("http", "http", "what HTTP costs beside gRPC, by pairs"),
    Benchmark("auth", "auth", "what knowing the caller costs, by pairs"),
    Benchmark("seals", "seals", "what seals of stored KV cost, by pairs"),
)
