"""Reads what is trained on, and in which shares: kinds of examples, each out of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from services.training.loop_settings import LoopSettings
from services.training.mixture import LessonKind, Mixture
from services.training.trainee import LessonT
from shared.config import read_yaml
from shared.errors import ConfigError

PAPER_SHARES = {"qa": 50.0, "dialogue": 25.0, "reasoning": 10.0, "code": 10.0, "others": 5.0}
"""TurboRAG's (arXiv 2410.07590, table 5): document question answering, general dialogue, reasoning, code,
others."""
NO_SHARES: Mapping[str, float] = MappingProxyType({})
ExampleT = TypeVar("ExampleT")
_FORM = "KIND=SHARE:FILE[,FILE…]"


@dataclass(frozen=True, slots=True)
class MixPart:
    """``share``: relative to those of the other kinds."""

    kind: str
    share: float
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ExampleKind(Generic[ExampleT]):
    """``source``: what the examples are out of, for readers."""

    name: str
    share: float
    source: str
    examples: Sequence[ExampleT]


def read_kinds(
    parts: Iterable[MixPart], read: Callable[[Path], Iterable[ExampleT]]
) -> list[ExampleKind[ExampleT]]:
    """``read``: the examples of a file. Raises what it raises."""
    return [
        ExampleKind(
            part.kind,
            part.share,
            ", ".join(path.name for path in part.files),
            [example for path in part.files for example in read(path)],
        )
        for part in parts
    ]


def by_kind(
    examples: Iterable[ExampleT | ExampleKind[ExampleT]],
) -> tuple[list[ExampleKind[ExampleT]], list[Sequence[ExampleT]]]:
    """Returns the kinds, and the examples of each; of examples without a kind no kinds, and all of them."""
    kinds, plain = [], []
    for one in examples:
        if isinstance(one, ExampleKind):
            kinds.append(one)
        else:
            plain.append(one)
    return kinds, [kind.examples for kind in kinds] or [plain]


def mixed(
    kinds: Sequence[ExampleKind[Any]],
    groups: Sequence[Sequence[LessonT]],
    settings: LoopSettings,
    say: Callable[[str], None],
) -> Sequence[LessonT] | Mixture[LessonT]:
    """Returns lessons as they are to be trained on, by the shares of their kinds, where there are kinds, and
    tells these. ``groups``: lessons as ``by_kind`` has their examples.

    Raises:
        ConfigError: a kind has no two lessons.
    """
    if not kinds:
        return groups[0]
    of_kinds = zip(kinds, groups, strict=True)
    mixture = Mixture(
        [LessonKind(kind.name, kind.share, lessons, kind.source) for kind, lessons in of_kinds], settings
    )
    for line in mixture.told():
        say(line)
    return mixture


def parse_mix(parts: Sequence[str], usual: Mapping[str, float] = PAPER_SHARES) -> list[MixPart]:
    """Each ``KIND=SHARE:FILE[,FILE…]``; ``usual``: kinds that need no share. One file of YAML or JSON may say
    all::

        qa: {share: 50, files: [handbook.jsonl]}
        dialogue: {share: 25, files: [chats.jsonl]}

    Raises:
        ConfigError: a part is of another form, or a kind comes twice.
    """
    if len(parts) == 1 and "=" not in parts[0]:
        found = _of_file(Path(parts[0]), usual)
    else:
        found = [_of_option(part, usual) for part in parts]
    kinds = [part.kind for part in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ConfigError(f"--mix: {kind}: comes twice; list its files behind one share")
    return found


def _of_option(text: str, usual: Mapping[str, float]) -> MixPart:
    kind, given, rest = text.partition("=")
    share, colon, files = rest.partition(":")
    if not colon and kind.strip() in usual:  # files alone
        share, files = "", rest
    if not given or not kind.strip() or not files.strip():
        raise ConfigError(f"--mix: expected {_FORM}, got {text!r}")
    where = f"--mix: {kind.strip()}"
    return _part(where, kind.strip(), share.strip() or None, files.split(","), Path(), usual)


def _of_file(path: Path, usual: Mapping[str, float]) -> list[MixPart]:
    try:
        values = read_yaml(path.read_text(encoding="utf-8"), f"--mix: {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--mix: {path} cannot be read: {error}; or say {_FORM}") from error
    if not values:
        raise ConfigError(f"--mix: {path}: names no kind; write `qa: {{share: 50, files: [FILE]}}`")
    found = []
    for kind, value in values.items():
        where = f"--mix: {path}: {kind}"
        if not isinstance(value, dict) or not {"files"} <= set(value) <= {"share", "files"}:
            raise ConfigError(f"{where}: expected {{share: 50, files: [FILE]}}, got {value!r}")
        files = value["files"]
        found.append(
            _part(
                where,
                str(kind),
                value.get("share"),
                files if isinstance(files, list) else [files],
                path.parent,  # files lie beside the mix
                usual,
            )
        )
    return found


def _part(
    where: str, kind: str, share: Any, files: Sequence[Any], folder: Path, usual: Mapping[str, float]
) -> MixPart:
    if share is None:
        if kind not in usual:
            own = f"; only {', '.join(usual)} have one of their own" if usual else f"; say {_FORM}"
            raise ConfigError(f"{where}: share: is missing{own}")
        share = usual[kind]
    try:
        number = float(share)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"{where}: share: must be a number above 0, got {share!r}")
    if not files or not all(isinstance(file, str) and file.strip() for file in files):
        raise ConfigError(f"{where}: files: expected names of files, got {list(files)!r}")
    return MixPart(kind, number, tuple(folder / file.strip() for file in files))
