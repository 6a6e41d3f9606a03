"""From the configuration to a running selector."""

from __future__ import annotations

import asyncio
import logging

from services.selector.config import SelectorConfig
from services.selector.service import SelectorService
from shared.engine.kv.source import NoSource, SegmentSource
from shared.engine_config import EngineConfig
from shared.errors import ConfigError
from shared.kv_stores import NodeFiles
from shared.prompt import PromptTokenizer
from shared.seals import seal_keys_of
from shared.selection.auxiliary import load_auxiliary
from shared.stored_segments.files import KvShape
from shared.stored_segments.source import StoreSegmentSource

log = logging.getLogger(__name__)


def load_selector(
    config: SelectorConfig, store: NodeFiles | None, node_id: str, loop: asyncio.AbstractEventLoop
) -> SelectorService:
    """Loads the auxiliary model. ``store`` is called on ``loop`` only; None keeps no KV.

    Raises:
        KvquiltError: there is no such model, its attention cannot be seen, or one of the tokenizers gives no
        offsets; says which.
    """
    if not config.model:
        raise ConfigError("selector.model: name an auxiliary model, a directory or Hugging Face id")
    primary = PromptTokenizer.of_model(config.primary, config.prompt)
    if primary is None:
        raise ConfigError(
            "selector.primary: the model has no tokenizer, so the tokens of a text cannot be chosen"
        )
    auxiliary = load_auxiliary(config.model, EngineConfig(dtype=config.dtype))
    source: SegmentSource = NoSource()
    if store is not None:
        shape = KvShape.of_model(auxiliary.scorer, auxiliary.prompts.hash)
        source = StoreSegmentSource(store, node_id, loop, shape, keys=seal_keys_of(config.auth))
    service = SelectorService(config, auxiliary, primary, source, store)
    log.info("selecting by %s, fingerprint %s", config.model, auxiliary.scorer.fingerprint)
    return service
