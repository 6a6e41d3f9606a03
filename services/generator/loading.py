"""From the configuration to a running generator."""

from __future__ import annotations

import asyncio
import logging

from services.generator.config import GeneratorConfig
from services.generator.recomputing import Comparing
from services.generator.selection import SelectionPort
from services.generator.service import Generator
from shared.engine import Engine, load_model
from shared.engine.kv.source import NoSource
from shared.kv_stores import NodeFiles
from shared.metrics.recorder import Metrics
from shared.prompt import PromptTokenizer
from shared.seals import seal_keys_of
from shared.stored_segments.files import KvShape
from shared.stored_segments.source import StoreSegmentSource
from shared.verdict import Verdict
from shared.verdicts import read_verdicts

log = logging.getLogger(__name__)


def load_generator(
    config: GeneratorConfig,
    store: NodeFiles | None,
    node_id: str,
    loop: asyncio.AbstractEventLoop,
    selector: SelectionPort | None = None,
    metrics: Metrics | None = None,
) -> Generator:
    """Loads the model and starts its engine. ``store`` is called on ``loop`` only; None keeps no KV.
    ``selector`` None: nobody chooses for ``cacheclip``. ``metrics``: where it is counted.

    Raises:
        KvquiltError: there is no such model, it cannot be reproduced exactly, or its tokenizer, template or
        verdict is broken.
    """
    verdicts = _verdicts(config)
    tokenizer = PromptTokenizer.of_model(config.model, config.prompt)
    model = load_model(
        config.model,
        dtype=config.engine.dtype,
        device=config.engine.device,
        packets=config.prompt.packets,
        weights=config.engine.weights,
    )
    if tokenizer:
        model.end_also_at(tokenizer.end_ids)
    comparing: Comparing | None = None
    if store:
        shape = KvShape.of_model(model, tokenizer.hash if tokenizer else "")
        keys = seal_keys_of(config.auth)
        comparing = Comparing(StoreSegmentSource(store, node_id, loop, shape, config.kv_encoding, keys))
    source = comparing or NoSource()
    engine = Engine(
        model,
        config.engine,
        source,
        decode=tokenizer.decode if tokenizer else None,
        tokenizer=tokenizer.as_json if tokenizer else None,
    )
    log.info(
        "serving %s, fingerprint %s, %s on %s",
        config.model,
        model.fingerprint,
        model.spec.dtype_name,
        model.spec.device,
    )
    return Generator(config, engine, tokenizer, selector, verdicts, comparing, store, metrics)


def _verdicts(config: GeneratorConfig) -> tuple[Verdict, ...]:
    """Reads what ``auto`` goes by."""
    path = config.verdict_file
    return read_verdicts(path) if config.verdict or path.is_file() else ()
