"""The verdict of an evaluation on the best way to reuse KV with one model, for requests of mode ``auto``.

A verdict is a JSON file, ``quilt.verdict.json`` in the model's directory. It holds for the model, the prefix,
the encoding of stored KV and what KV is computed behind (``kv_context``) that it was made with, and for no
other. Torch-free.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shared.config import load
from shared.errors import ConfigError
from shared.generation.modes import GoesBy, ReuseMode
from shared.kv_types import KvContext

VERDICT_FILE = "quilt.verdict.json"
BY_RATIO = tuple(mode for mode in ReuseMode if mode.row.goes_by is GoesBy.RATIO)


@dataclass(frozen=True, slots=True)
class Tally:
    """What was asked of one kind of question. ``right``: by mode and ratio the share of right answers, and
    its interval (95 %)."""

    num_questions: int
    num_contexts: int
    right: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    mode, ratio: how to reuse; ratio None of modes that go by none.
    tolerance: how much worse than ``full`` an answer may be, as the evaluation measured it (a share of the
    questions).
    model: fingerprint. prefix: hash of the prefix's ids (``shared.identity.ids_hash``). encoding: of stored
    KV. kv_context: what chunks were computed behind.
    recompute: whether recomputing tokens may be of use; if not, it takes from chunks what they know of their
    documents, and who asks for it all the same is told so.
    asked: what it was made of, by kind of question.
    """

    mode: ReuseMode
    tolerance: float
    model: str
    prefix: str
    encoding: str
    ratio: float | None = None
    kv_context: KvContext = KvContext.NONE
    recompute: bool = True
    asked: dict[str, Tally] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode.row.goes_by is GoesBy.TOKENS:
            possible = [mode for mode in ReuseMode if mode.row.goes_by is not GoesBy.TOKENS]
            raise ValueError(f"mode: '{self.mode}' is no verdict; it must be one of {', '.join(possible)}")
        if self.ratio is not None and self.mode not in BY_RATIO:
            raise ValueError(f"ratio: mode {self.mode} does not go by a ratio; leave it out")
        if self.ratio is not None and not 0 <= self.ratio <= 1:  # True for NaN
            raise ValueError(f"ratio: {self.ratio!r} is out of range; it must be 0 to 1")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(
                f"tolerance: {self.tolerance!r} is out of range; it must be finite and at least 0"
            )
        if not self.recompute and self.mode.recomputes:
            raise ValueError(
                f"recompute: mode {self.mode} recomputes; a verdict that forbids it names another"
            )
        for name in ("model", "prefix", "encoding"):
            if not getattr(self, name):
                raise ValueError(f"{name}: is empty; it says what the verdict holds for")

    @property
    def made_for(self) -> tuple[str, str, str, KvContext]:
        """A model has one verdict for each."""
        return self.model, self.prefix, self.encoding, self.kv_context

    @property
    def advice(self) -> str:
        """For an operator."""
        ratio = "" if self.ratio is None else f" at {self.ratio:g}"
        return f"{self.mode}{ratio}{'' if self.recompute else '; recomputing is advised against'}"

    @classmethod
    def read(cls, path: Path) -> Verdict:
        """
        Raises:
            ConfigError: there is no such file, or it is no verdict; names the field.
        """
        where = f"{path.name}: "
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{where}there is no such file; generator.verdict names it") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}cannot be read as JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(
                f"{where}expected an object with mode, ratio, tolerance, model, prefix and encoding"
            )
        return load(cls, values, where)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def misfit(
        self, model: str, prefix: str, encoding: str, contexts: Collection[KvContext] = tuple(KvContext)
    ) -> str:
        """Names what it was not made for; empty if it holds. ``contexts``: settings that the chunks may have
        been made under."""
        for name, own, served in (
            ("model", self.model, model),
            ("prefix", self.prefix, prefix),
            ("encoding", self.encoding, encoding),
        ):
            if own != served:
                return name
        return "" if self.kv_context in contexts else "kv_context"
