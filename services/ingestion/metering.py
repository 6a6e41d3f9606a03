"""Counts the documents that were gone through."""

from __future__ import annotations

from shared.documents import Stage, UpsertProgress
from shared.metrics.recorder import Metrics
from shared.metrics.table import INGESTED_CHUNKS, INGESTED_DOCUMENTS, INGESTED_TOKENS

_LAST = (Stage.STORED, Stage.UNCHANGED, Stage.FAILED)


def count(metrics: Metrics, tenant: str, progress: UpsertProgress) -> None:
    """Takes what a document came to; of its stages before nothing."""
    if progress.stage not in _LAST:
        return
    metrics.add(INGESTED_DOCUMENTS, outcome=progress.stage.value, tenant=tenant)
    if progress.stage is Stage.STORED:
        metrics.add(INGESTED_CHUNKS, progress.num_chunks, tenant=tenant)
        metrics.add(INGESTED_TOKENS, progress.num_tokens, tenant=tenant)
