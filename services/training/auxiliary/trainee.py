"""The auxiliary model as the training loop trains it: all of its weights, so that the windows which questions
attend to are those that are worth computing anew.

A window's score is what the selector's is: the mean of its tokens' scores. The loss is the cross-entropy of
the windows' shares of all scores from their shares of all worth, a distribution over the windows of a
context; every question counts alike. Of what is attended in front of the chunks and in the question nothing
is asked.

Every lesson has a question that teaches something. Shapes: Q questions, T tokens of the auxiliary, W windows.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from services.training.auxiliary.contexts import SelectionContext
from services.training.auxiliary.labels import Floats, LabelledContext, SelectionLabels
from services.training.auxiliary.scores import attended
from services.training.auxiliary.settings import Target
from services.training.trainee import LossTally
from services.training.twin_request import TwinRequest
from shared.engine.model.loader import read_config, read_weights, take_over
from shared.prompt import PromptTokenizer

LEAST_WORTH = 0.05
"""Nats that some window must add for a question to teach anything."""
_LEAST_SCORE = 1e-12
_COPIED = (".json", ".jinja", ".model", ".txt")
_WRITTEN = ("config.json", "generation_config.json")


@dataclass(frozen=True, slots=True, eq=False)
class SelectionLesson:
    """``shares``: by question, what share of all scores each window shall have; None: the question teaches
    nothing."""

    labelled: LabelledContext
    shares: tuple[Floats | None, ...]

    @classmethod
    def of(cls, labelled: LabelledContext, target: Target) -> SelectionLesson:
        return cls(labelled, tuple(_shares(labels, target) for labels in labelled.labels))

    @property
    def context(self) -> SelectionContext:
        return self.labelled.context

    @property
    def num_tokens(self) -> int:
        """Questions that teach something."""
        return sum(shares_W is not None for shares_W in self.shares)

    @property
    def identity(self) -> object:
        shares = [None if shares_W is None else shares_W.round(6).tolist() for shares_W in self.shares]
        return self.context, shares


class AuxiliaryTrainee:
    """``path``: a model directory or hub id; ``prompts``: its own; ``primary``: the fingerprint of the model
    that labels are of.

    Raises:
        InvalidRequest, ModelUnsupported: it cannot be loaded, or the engine does not drive it.
    """

    measure, untrained = "cross-entropy", "untrained"

    def __init__(self, path: str, prompts: PromptTokenizer, primary: str, device: str = "cpu") -> None:
        hf_model = read_weights(path, config=read_config(path), dtype="auto")
        self._dtype = hf_model.dtype
        self._path, self._prompts = path, prompts
        self.model = take_over(hf_model.float().to(device).eval())
        self._made_of = {"auxiliary": self.model.fingerprint, "primary": primary}

    def parameters(self) -> Iterator[Tensor]:
        return iter(self.model.hf_model.parameters())

    def state(self) -> dict[str, Tensor]:
        return {name: x.detach() for name, x in self.model.hf_model.named_parameters()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.model.hf_model.named_parameters():
            tensor.copy_(state[name])

    def made_of(self) -> dict[str, str]:
        prompt = hashlib.sha256(repr(self._prompts.prefix_ids).encode()).hexdigest()[:16]
        return {**self._made_of, "prompt": prompt}

    def loss(self, lessons: Sequence[SelectionLesson]) -> Tensor:
        return torch.stack([-(wanted_QW * told_QW).sum() for wanted_QW, told_QW in self._told(lessons)]).sum()

    def evaluate(self, lessons: Sequence[SelectionLesson]) -> LossTally:
        told = list(self._told(lessons))
        losses = torch.stack([-(wanted_QW * told_QW).sum() for wanted_QW, told_QW in told])
        alike = torch.cat([wanted_QW.argmax(1) == told_QW.argmax(1) for wanted_QW, told_QW in told])
        loss, num_alike = torch.stack([losses.sum(), alike.float().sum()]).tolist()
        return LossTally(loss, num_alike, len(alike))

    def release(self) -> None:
        pass

    def write(self, out: Path, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> None:
        """A model directory for ``selector.model``, in the type of weights that it came in."""
        model = copy.deepcopy(self.model.hf_model)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                tensor.copy_(state[name])
        model.to(self._dtype).save_pretrained(out)
        if not Path(self._path).is_dir():
            self._prompts.tokenizer.save_pretrained(out)
            return
        for file in sorted(Path(self._path).iterdir()):
            weights = file.name.endswith(".index.json")
            if file.suffix in _COPIED and file.name not in _WRITTEN and not weights:
                shutil.copyfile(file, out / file.name)

    @torch.no_grad()
    def window_scores(self, context: SelectionContext) -> list[Floats]:
        """By question, as it is now."""
        (scores_QT,) = attended(self.model, [self._request(context, range(len(context.auxiliary.questions)))])
        return list(_of_windows(scores_QT, context).double().cpu().numpy())

    def _told(self, lessons: Sequence[SelectionLesson]) -> Iterator[tuple[Tensor, Tensor]]:
        """By lesson, of the questions that teach something: the shares that are wanted, and the logarithms of
        those that there are [Q, W]."""
        asked = [[i for i, one in enumerate(lesson.shares) if one is not None] for lesson in lessons]
        requests = [self._request(one.context, few) for one, few in zip(lessons, asked, strict=True)]
        for lesson, scores_QT in zip(lessons, attended(self.model, requests), strict=True):
            score_QW = _of_windows(scores_QT, lesson.context).clamp_min(_LEAST_SCORE)
            wanted_QW = np.stack([shares_W for shares_W in lesson.shares if shares_W is not None])
            told_QW = (score_QW / score_QW.sum(1, keepdim=True)).log()
            yield torch.from_numpy(wanted_QW).to(told_QW), told_QW

    def _request(self, context: SelectionContext, questions: Sequence[int]) -> TwinRequest:
        reading = context.auxiliary
        branches = tuple(reading.questions[i] for i in questions)
        return TwinRequest(self._prompts.prefix_ids, reading.chunks, branches)


def _of_windows(scores_QT: Tensor, context: SelectionContext) -> Tensor:
    """Means over the tokens of each window [Q, W]."""
    lens_W = np.array(context.window_lens)
    of_window_TW = np.repeat(np.eye(len(lens_W)) / lens_W, lens_W, axis=0)
    return scores_QT @ torch.from_numpy(of_window_TW).to(scores_QT)


def _shares(labels: SelectionLabels, target: Target) -> Floats | None:
    worth_W = labels.worth_W if target is Target.GAIN else labels.attended_W
    if target is Target.GAIN and worth_W.max(initial=0.0) < LEAST_WORTH:
        return None
    total = float(worth_W.sum())
    return np.asarray(worth_W / total) if total > 0 else None
