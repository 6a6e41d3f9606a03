"""Keeps what users say of answers, with the mode and the chunks that these were given by.

An answer is remembered for a while, by its request id, in the memory of the replica that gave it; a rating
takes it from there and goes into the file of its tenant, a line each, written through to the disk before it
is acknowledged. Files are bounded: the oldest ratings go first. Several replicas on one machine may share
them.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from services.gateway.config import FeedbackConfig
from shared.errors import FailedPrecondition, InvalidRequest, NotFound, StorageFull
from shared.feedback import Feedback, RatedAnswer, Rating
from shared.private_files import FILE_MODE, make_private_directory, open_private
from shared.search import SearchHit
from shared.whole_files import replacing, sync_directory

_SLACK = 1.25  # times the most ratings: files are cut when they have become so long
_MOST_TEXT = 4096  # characters of an answer that are kept


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """``texts``: by question. ``selected``: tokens of the context that were computed anew because the mode
    chose them."""

    collection: str
    questions: tuple[str, ...]
    texts: tuple[str, ...]
    hits: tuple[SearchHit, ...]
    reuse: str
    selected: int

    @property
    def ratio(self) -> float:
        """Of the context's tokens."""
        num_tokens = sum(len(hit.chunk.token_ids) for hit in self.hits)
        return round(self.selected / num_tokens, 4) if num_tokens else 0.0


class FeedbackKeeper:
    """``clock``: seconds since 1970. Methods that touch files block."""

    def __init__(self, config: FeedbackConfig, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self._counts: dict[str, tuple[int, int]] = {}  # of a tenant's file: its size, and lines in it
        self._given: OrderedDict[tuple[str, str], GivenAnswer] = OrderedDict()

    def __len__(self) -> int:
        """Answers that can be rated."""
        return len(self._given)

    def remember(self, tenant: str, request_id: str, answer: GivenAnswer) -> None:
        """So that it can be rated; the answer that was given longest ago is forgotten."""
        if not self._config.directory:
            return
        key = (tenant, request_id)
        self._given.pop(key, None)
        self._given[key] = answer
        while len(self._given) > self._config.remembered:
            self._given.popitem(last=False)

    def rate(self, tenant: str, feedback: Feedback) -> RatedAnswer:
        """Returns once it is durable.

        Raises:
            FailedPrecondition: nothing is kept here. NotFound: no such answer is remembered.
            InvalidRequest: there is no such question, nothing is said, or too much. StorageFull: it cannot
            be written.
        """
        given = self._given_answer(tenant, feedback)
        rated = RatedAnswer(
            feedback.request_id,
            feedback.question,
            feedback.rating,
            feedback.comment,
            given.collection,
            given.questions[feedback.question],
            given.texts[feedback.question][:_MOST_TEXT],
            given.reuse,
            given.ratio,
            tuple(hit.chunk.chunk_id for hit in given.hits),
            tuple(hit.document_id for hit in given.hits),
            self._clock(),
        )
        try:
            self._append(tenant, rated)
        except OSError as error:
            raise StorageFull(f"feedback: cannot be written: {error.strerror or error}") from error
        return rated

    def ratings(self, tenant: str, collection: str = "") -> list[RatedAnswer]:
        """The oldest first; of each answer and question the last one. ``collection`` empty: of all."""
        self._check_kept()
        rated: dict[tuple[str, int], RatedAnswer] = {}
        for one in _read(self._file(tenant)):
            rated.pop((one.request_id, one.question), None)
            rated[one.request_id, one.question] = one
        newest = list(rated.values())[-self._config.most_ratings :]
        return [one for one in newest if collection in ("", one.collection)]

    def _given_answer(self, tenant: str, feedback: Feedback) -> GivenAnswer:
        self._check_kept()
        if feedback.rating is Rating.NONE and not feedback.comment.strip():
            raise InvalidRequest("rating: neither a rating nor a comment is given; give one of them")
        most = self._config.max_comment_chars
        if len(feedback.comment) > most:
            raise InvalidRequest(f"comment: at most {most} characters, got {len(feedback.comment)}")
        given = self._given.get((tenant, feedback.request_id))
        if given is None:
            raise NotFound(
                f"request_id: no answer {feedback.request_id[:80]!r} is remembered here, of the last "
                f"{self._config.remembered}; rate answers sooner, or raise gateway.feedback.remembered"
            )
        if feedback.question >= len(given.questions):
            raise InvalidRequest(
                f"question: the answer is to {len(given.questions)}, got {feedback.question}"
            )
        return given

    def _check_kept(self) -> None:
        if not self._config.directory:
            raise FailedPrecondition(
                "feedback is not kept here; name a directory in gateway.feedback.directory"
            )

    def _file(self, tenant: str) -> Path:
        return Path(self._config.directory) / f"{tenant}.jsonl"

    def _append(self, tenant: str, rated: RatedAnswer) -> None:
        path = self._file(tenant)
        make_private_directory(path.parent)
        line = _line(rated)
        with _locked(path):
            size = path.stat().st_size if path.exists() else 0
            known_size, num_lines = self._counts.get(tenant, (-1, 0))
            if known_size != size:  # somebody else has written
                num_lines = len(_lines(path))
            if num_lines >= _SLACK * self._config.most_ratings or not _ends_whole(path):
                lines = [*_lines(path), line][-self._config.most_ratings :]
                _replace(path, lines)
                num_lines = len(lines)
            else:
                with open(path, "ab", opener=open_private) as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
                if not size:
                    sync_directory(path.parent)
                num_lines += 1
            self._counts[tenant] = path.stat().st_size, num_lines


def _read(path: Path) -> Iterator[RatedAnswer]:
    """Lines that are whole and known."""
    names = {one.name for one in fields(RatedAnswer)}
    for line in _lines(path):
        try:
            values = json.loads(line)
            values = {name: value for name, value in values.items() if name in names}
            values |= {name: tuple(values[name]) for name in ("chunk_ids", "document_ids")}
            yield RatedAnswer(**values | {"rating": Rating(values["rating"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def _lines(path: Path) -> list[bytes]:
    """Without one that a crash has left unfinished."""
    try:
        return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]
    except FileNotFoundError:
        return []


def _ends_whole(path: Path) -> bool:
    """Behind a whole line, or empty."""
    if not path.exists() or not path.stat().st_size:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _line(rated: RatedAnswer) -> bytes:
    return json.dumps(asdict(rated)).encode() + b"\n"


def _replace(path: Path, lines: Sequence[bytes]) -> None:
    with replacing(path, FILE_MODE) as file:
        file.writelines(lines)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, of all processes on this machine."""
    with open(path.with_name(f".{path.name}.lock"), "w", opener=open_private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
