"""The verdict of an evaluation on the best way to reuse KV with one model, for requests of mode ``auto``.

A verdict is a JSON file, ``quilt.verdict.json`` in the model's directory. It holds for what it was made with
(``MadeWith``: model, tokenizer, prefix, adapter, what KV is computed behind, encoding of stored KV, and for
``cacheclip`` the auxiliary model, grouping and reading), and for nothing else: a change of any expires it.
Torch-free.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from shared.config import load
from shared.errors import ConfigError
from shared.generation.modes import GoesBy, ReuseMode
from shared.identity import digest
from shared.kv_types import KvContext

VERDICT_FILE = "quilt.verdict.json"
BY_RATIO = tuple(mode for mode in ReuseMode if mode.row.goes_by is GoesBy.RATIO)
FORM = 2
"""Of new verdicts. Those of form 1 did not say for which tokenizer, adapter and selector they hold."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one kind of question. ``right``: by mode and ratio the share of right answers, and
    its interval (95 %). ``kl``: by mode and ratio the mean divergence of the first tokens' distributions
    from the reference's, in nats."""

    num_questions: int
    num_contexts: int
    right: dict[str, tuple[float, ...]] = field(default_factory=dict)
    kl: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeWith:
    """Conditions that a verdict depends on.

    model: fingerprint. tokenizer: hash. prefix: hash of the prefix's ids (``shared.identity.ids_hash``).
    encoding: of stored KV. kv_context: what chunks are computed behind. adapter: identity of the adapter
    that requests are answered with. auxiliary: fingerprint of the model that chooses for ``cacheclip``;
    grouping, reading: how. Empty: none; of a verdict of form 1, or of what is served now: not known, and
    not compared, except that a verdict without an adapter is for requests without one.
    """

    model: str
    prefix: str
    encoding: str
    kv_context: KvContext | None = None
    tokenizer: str = ""
    adapter: str = ""
    auxiliary: str = ""
    grouping: str = ""
    reading: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    mode, ratio: how to reuse; ratio None of modes that go by none.
    tolerance: how much worse than the reference an answer may be, as the evaluation measured it (a share of
    the questions). The reference is ``full`` over the whole blocks of what is retrieved; of form 1
    ``full``.
    recompute: whether recomputing tokens may be of use; if not, it takes from chunks what they know of
    their documents, and who asks for it all the same is told so.
    asked: what it was made of, by kind of question.
    questions: whose they were, ``generated`` or ``own``. num_contexts: that it took. alpha: the chance that
    a mode counts as good enough which is not.
    loss_at_most: of ``mode``, how much worse than the reference it is at most, by group of questions; more
    than ``tolerance`` where no mode is good enough. agreement: of its answers with the reference's, the mean
    over all questions (``shared.measuring.agreement``); None: it was not measured. made_s: when, in seconds
    since 1970.
    suspended: what the gateway's shadow saw, so that it is not obeyed until another one is made; empty:
    nothing.
    The others: see ``MadeWith``.
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
    tokenizer: str = ""
    adapter: str = ""
    auxiliary: str = ""
    grouping: str = ""
    reading: str = ""
    questions: str = ""
    num_contexts: int = 0
    alpha: float = 0.0
    loss_at_most: dict[str, float] = field(default_factory=dict)
    form: int = 1
    agreement: float | None = None
    made_s: float = 0.0
    suspended: str = ""

    def __post_init__(self) -> None:
        if self.mode.row.goes_by is GoesBy.TOKENS:
            possible = [mode for mode in ReuseMode if mode.row.goes_by is not GoesBy.TOKENS]
            raise ValueError(f"mode: '{self.mode}' is no verdict; it must be one of {', '.join(possible)}")
        if self.ratio is not None and self.mode not in BY_RATIO:
            raise ValueError(f"ratio: mode {self.mode} does not go by a ratio; leave it out")
        if self.ratio is not None and not 0 <= self.ratio <= 1:  # True for NaN
            raise ValueError(f"ratio: {self.ratio!r} is out of range; it must be 0 to 1")
        if self.agreement is not None and not 0 <= self.agreement <= 1:
            raise ValueError(f"agreement: {self.agreement!r} is out of range; it must be 0 to 1")
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
        if not 1 <= self.form <= FORM:
            raise ValueError(
                f"form: {self.form} is not known to this version, which reads 1 to {FORM}; run `kvquilt gate`"
            )

    @property
    def made_with(self) -> MadeWith:
        return MadeWith(**{one.name: getattr(self, one.name) for one in fields(MadeWith)})

    @property
    def id(self) -> str:
        """Of what it says, what for and when; the same whether it is suspended or not."""
        said = (self.mode.value, self.ratio, self.tolerance, self.num_contexts, self.made_s)
        return digest(repr((said, self.made_with)).encode())

    @property
    def made_for(self) -> tuple[str, str, str, KvContext, str]:
        """A model has one verdict for each."""
        return self.model, self.prefix, self.encoding, self.kv_context, self.adapter

    @property
    def beyond(self) -> list[str]:
        """Groups of questions on which ``mode`` may be worse than ``tolerance`` allows."""
        return [group for group, loss in self.loss_at_most.items() if loss > self.tolerance]

    @property
    def advice(self) -> str:
        """For an operator."""
        ratio, beyond = "" if self.ratio is None else f" at {self.ratio:g}", self.beyond
        missed = f"; not within {100 * self.tolerance:g} points of the reference on {', '.join(beyond)}"
        return (
            f"{self.mode}{ratio}{'' if self.recompute else '; recomputing is advised against'}"
            f"{missed if beyond else ''}"
        )

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

    def misfits(self, served: MadeWith, conditioned: bool | None = None) -> tuple[str, ...]:
        """Names what it was not made for; empty if it holds. ``conditioned``: whether a request's chunks
        are computed behind others, which is all that it shows of ``kv_context``; None: it has none."""
        changed = [
            name for name in ("model", "tokenizer", "prefix", "encoding") if self._differs(served, name)
        ]
        if served.adapter != self.adapter:
            changed.append("adapter")
        if conditioned is not None and not self._fits(conditioned, served.kv_context):
            changed.append("kv_context")
        if self.mode.deferred:
            changed += [name for name in ("auxiliary", "grouping", "reading") if self._differs(served, name)]
        return tuple(changed)

    def _fits(self, conditioned: bool, served: KvContext | None) -> bool:
        """``served``: the configured one; of chunks that were computed under another one only
        ``conditioned`` is known."""
        if conditioned != (self.kv_context is not KvContext.NONE):
            return False
        return not conditioned or served in (None, KvContext.NONE, self.kv_context)

    def _differs(self, served: MadeWith, name: str) -> bool:
        own, theirs = getattr(self, name), getattr(served, name)
        return bool(own and theirs and own != theirs)
