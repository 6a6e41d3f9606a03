"""Declares what the training loop needs of what it trains: lessons, and something that learns from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor


class Lesson(Protocol):
    """A context with what is asked over it."""

    @property
    def num_tokens(self) -> int:
        """The loss is a sum over these, and an update goes by its mean."""
        ...

    @property
    def identity(self) -> object:
        """Equal for equal lessons; has a ``repr`` that is the same in every process."""
        ...


LessonT = TypeVar("LessonT", bound=Lesson)
LearnsT = TypeVar("LearnsT", bound=Lesson, contravariant=True)


@dataclass(frozen=True, slots=True)
class LossTally:
    """Of some lessons: the loss, summed over their tokens, and at how many of these the likeliest token is
    the one to be learned."""

    loss: float
    num_alike: float
    num_tokens: float


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """Over contexts that are not trained on: the mean loss per token, and the share of tokens at which the
    likeliest is the one to be learned. ``kinds``: the loss of each kind alone, where there are kinds."""

    loss: float
    agreement: float
    kinds: dict[str, float] = field(default_factory=dict)


class Trainee(Protocol[LearnsT]):
    """The thing that is trained: an adapter, a model, vectors. The loop never looks inside.

    ``measure``: what the loss is, for readers (``KL``). ``untrained``: what it is compared with, for readers
    (``without the adapter``).
    """

    measure: str
    untrained: str

    def parameters(self) -> Iterable[Tensor]:
        """Returns the tensors that gradients are taken of, in an order that is the same in every process."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """All that is learned, by name; views of what changes, not copies."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Makes ``state``, maybe of another device, what is learned."""
        ...

    def made_of(self) -> Mapping[str, str]:
        """Returns what must be the same, beside settings and lessons, to go on from a checkpoint, by name."""
        ...

    def loss(self, lessons: Sequence[LearnsT]) -> Tensor:
        """Summed over all tokens of these lessons, computed in one pass, with gradients."""
        ...

    def evaluate(self, lessons: Sequence[LearnsT]) -> LossTally:
        """Of these lessons, computed in one pass, without gradients, as it is now."""
        ...

    def release(self) -> bool | None:
        """Gives up memory that it can do without: a pass did not fit. True: the same pass may fit now."""
        ...

    def write(self, out: Path, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> None:
        """Writes what was its ``state`` into ``out``, in the form in which it serves, with the settings and
        the update that it is of."""
        ...
