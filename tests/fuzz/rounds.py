"""Rounds of fuzzing, until the time is over or something is found. What a round sends follows from its number
and the seed alone, so that a finding can be looked at again."""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from services.ingestion.config import ParsingConfig
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.parsing.processes import ParserProcesses
from shared.errors import KvquiltError
from tests.fuzz.files import Files


@dataclass
class Findings:
    """``told``: how often each parser ended how. ``wrong``: what must not be."""

    rounds: int = 0
    told: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def fuzz_files(seconds: float, seed: int) -> Findings:
    """Every parser, in processes as the service has them. A document that cannot be read says why; one that
    is too slow or too large would have to be much larger than these."""
    findings, parsers = Findings(), ParserProcesses(ParsingConfig())
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s and not findings.wrong:
        document = Files(random.Random(f"{seed}-{findings.rounds}")).document()
        ending, outcome = Path(document.document_id).suffix, "read"
        try:
            parsers(document, ParserSettings(), lambda: None).text.encode()
        except KvquiltError as error:
            outcome = error.code
            if error.code != "DOCUMENT_UNREADABLE" or "reading the document took" in error.detail:
                findings.wrong.append(f"round {findings.rounds}: {document.document_id}: {error.detail}")
        except Exception:
            findings.wrong.append(f"round {findings.rounds}: {traceback.format_exc()}")
        findings.told[f"{ending}: {outcome}"] += 1
        findings.rounds += 1
    parsers.close()
    return findings
