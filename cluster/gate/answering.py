"""Answers questions in every way that is wanted of each, many requests at once through one engine, and says
how far each answer's distributions of tokens are from those of ``full`` over the whole blocks, the reference.

What is the same for several of them, such as ``full`` over the same chunks in the same order, is asked once.
Chunks are computed once, behind their documents, and stay resident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import fmean

import numpy as np

from cluster.gate.encoded import EncodedSource
from cluster.gate.ingested import Ingested
from cluster.gate.modes import WHOLE_BLOCKS, Arm, ClipSetting, Comparison, Over
from cluster.gate.selections import Selections
from services.ingestion.config import IngestionConfig
from shared.engine import Engine, EngineConfig, load_model
from shared.engine.kv.encodings import EXACT
from shared.engine.kv.source import NoSource
from shared.engine_config import GIB, Weights
from shared.errors import ConfigError
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import Event, SelectedEvent, TokenEvent
from shared.measuring.agreement import agreement
from shared.measuring.asking import AskedTogether
from shared.measuring.paired import divergence
from shared.prompt import PromptTokenizer
from shared.selection.selector import Selection
from shared.selection.spans import SpanTokenizer

_BRANCHES, _KV_BYTES = 128, GIB
_ADAPTER = "judged"
STEPS, TOP = 32, 4
"""Tokens of an answer whose distributions are compared, and tokens of a distribution that count one by
one."""


@dataclass(frozen=True, slots=True)
class Models:
    """Directories, and how they are used. ``auxiliary`` empty: nobody chooses for ``cacheclip``.
    ``likeness``: also how alike auxiliary and primary judge is measured, over chunks that are alone.
    ``encoding``: of the chunks' KV, as if it had been stored. ``stop``: texts that end an answer.
    ``adapter``: directory of the one that requests go with; empty: none. ``adapters``: directories of those
    that some requests name, by name. ``device``: of torch, which the primary runs on. ``weights``: the
    primary's, see ``EngineConfig``."""

    primary: str
    auxiliary: str
    ingestion: IngestionConfig
    dtype: str = "auto"
    likeness: bool = False
    encoding: str = EXACT
    stop: tuple[str, ...] = ()
    adapter: str = ""
    adapters: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    weights: Weights = "exact"

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question over chunks of ``ingested``. ``placed``: numbers of those that were retrieved, in the
    order of the prompt; ``blocks``: of their whole blocks, in the order of their documents. ``seed``: of
    mode ``random``."""

    text: str
    ingested: Ingested
    placed: tuple[int, ...]
    blocks: tuple[int, ...]
    seed: int = 0

    def chunks(self, over: Over) -> tuple[Chunk, ...]:
        if over is Over.NOTHING:
            return ()
        return tuple(self.ingested.chunks[i] for i in (self.placed if over is Over.PLACED else self.blocks))

    @property
    def num_tokens(self) -> int:
        """Of the chunks that were retrieved."""
        return sum(len(chunk.token_ids) for chunk in self.chunks(Over.PLACED))


@dataclass(frozen=True, slots=True)
class EngineReply:
    """An answer to one question. ``first``: its first tokens, at most ``STEPS``. ``kl``: see
    ``_divergence``. ``alike``: agreement with the reference."""

    text: str
    selection: SelectedEvent
    first: tuple[TokenEvent, ...]
    kl: float = 0.0
    alike: float = 1.0

    @property
    def num_selected(self) -> float:
        """Of ``cacheblend`` the mean of the layers behind the first two, which compute all tokens in order to
        choose."""
        later = self.selection.layers[2:]
        return sum(later) / len(later) if later else len(self.selection.tokens)


@dataclass(slots=True)
class Group:
    """Questions over one context in one mode: a request. ``questions``: their texts, and which they are;
    ``watched``: tokens whose probabilities are told."""

    request: GenerateRequest
    questions: dict[str, int] = field(default_factory=dict)
    watched: set[int] = field(default_factory=set)


Way = tuple[AskedQuestion, Arm]
Key = tuple[str, tuple[str, ...]]


class EngineAnswers:
    """One engine. ``max_tokens``: of an answer."""

    def __init__(self, models: Models, plan: Comparison, max_tokens: int = 48) -> None:
        """
        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: one of the models cannot be used; says why.
        """
        prompts = PromptTokenizer.of_model(models.primary, models.ingestion.prompt)
        if prompts is None:
            raise ConfigError(f"--model: {models.primary} has no tokenizer; its questions are text")
        if plan.clips and plan.ratios and not models.auxiliary:
            raise ConfigError("--auxiliary: cacheclip needs one; name a directory, or give --cacheclip ''")
        self.prompts, self.plan = prompts, plan
        self.model = load_model(
            models.primary,
            dtype=models.dtype,
            device=models.device,
            packets=models.ingestion.prompt.packets,
            weights=models.weights,
        )
        self.model.end_also_at(prompts.end_ids)
        many = EngineConfig(
            max_running_branches=_BRANCHES,
            max_step_tokens=4096,
            max_waiting=10**6,
            resident_bytes=_KV_BYTES,
            adapters={_ADAPTER: models.adapter} if models.adapter else {},
        )
        self._adapter = _ADAPTER if models.adapter else ""
        exact = models.encoding == EXACT
        source = NoSource() if exact else EncodedSource(models.encoding, self.model.spec.rope)
        self.engine = Engine(self.model, many, source, decode=prompts.decode)
        self.spans = SpanTokenizer(prompts, models.primary)
        self.selections = Selections.of_models(models.auxiliary, self.spans) if models.auxiliary else None
        self._sampling = SamplingParams(max_tokens=max_tokens, stop=models.stop)
        self._names = count()

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of the models."""
        auxiliary = self.selections.fingerprint if self.selections else ""
        return {"primary": self.model.fingerprint, "auxiliary": auxiliary}

    def close(self) -> None:
        self.engine.shut_down()

    def ask(self, wanted: Sequence[Way]) -> list[EngineReply]:
        """In order. The reference is asked in any case.

        Raises:
            KvquiltError: a request failed.
        """
        references = {_reference(asked): (asked, WHOLE_BLOCKS) for asked, _ in wanted}
        best = replace(self._sampling, top_logprobs=TOP)
        first = dict(zip(references, self._answer([*references.values()], best), strict=True))
        rest = [way for way in wanted if way[1] != WHOLE_BLOCKS]
        others = iter(self._answer(rest, self._sampling, lambda asked: first[_reference(asked)]))
        return [first[_reference(asked)] if arm == WHOLE_BLOCKS else next(others) for asked, arm in wanted]

    def select(self, asked: AskedQuestion, clip: ClipSetting, ratio: float) -> Selection:
        """By the auxiliary model."""
        assert self.selections is not None
        return self.selections.select(asked.ingested, asked.placed, asked.text, ratio, clip)

    def _answer(
        self,
        ways: Sequence[Way],
        sampling: SamplingParams,
        reference: Callable[[AskedQuestion], EngineReply] | None = None,
    ) -> list[EngineReply]:
        """``reference``: its answer, the first tokens with the likeliest ones in their places."""
        groups: dict[object, Group] = {}
        places = []
        for asked, arm in ways:
            group = self._join(groups, asked, arm)
            for step in reference(asked).first if reference else ():
                group.watched.update(token_id for token_id, _ in step.top_logprobs)
            places.append(group)
        replies = self._run(list(groups.values()), sampling)
        found = []
        for (asked, _), group in zip(ways, places, strict=True):
            reply = replies[id(group)][group.questions[asked.text]]
            if reference is not None:
                theirs = reference(asked)
                kl = _divergence(theirs.first, reply.first, sorted(group.watched))
                reply = replace(reply, kl=kl, alike=agreement(asked.text, reply.text, theirs.text))
            found.append(reply)
        return found

    def _join(self, groups: dict[object, Group], asked: AskedQuestion, arm: Arm) -> Group:
        """The request that answers the question, which is new or waits for others with the same context."""
        request = self._request(asked, arm)
        context = [c.chunk_id if request.reuse.row.stored else c.token_ids for c in request.chunks]
        key = (tuple(context), request.reuse, request.recompute, asked.text if arm.recomputes else None)
        group = groups.setdefault(key, Group(request))
        group.questions.setdefault(asked.text, len(group.questions))
        return group

    def _request(self, asked: AskedQuestion, arm: Arm) -> GenerateRequest:
        """Its questions are still missing."""
        reuse, recompute = arm.mode, Recompute()
        if arm.recomputes:
            reuse, recompute = self._recompute(asked, arm)
        return GenerateRequest(
            f"{next(self._names)}",
            self.prompts.prefix_ids,
            asked.chunks(arm.over),
            (),
            reuse=reuse,
            recompute=recompute,
            links=asked.ingested.links,
            adapter=self._adapter,
        )

    def _recompute(self, asked: AskedQuestion, arm: Arm) -> tuple[ReuseMode, Recompute]:
        """As a request would have it; or as many tokens as the first form of ``cacheclip`` takes, where there
        is one (``Comparison.as_served``)."""
        assert arm.ratio is not None
        if arm.clip is not None:
            return ReuseMode.TOKENS, Recompute(tokens=self._chosen(asked, arm.clip, arm.ratio))
        ratio = arm.ratio
        if self.plan.as_served:
            return arm.mode, Recompute(ratio, seed=asked.seed)
        if self.plan.clips:
            ratio = len(self._chosen(asked, self.plan.clips[0], ratio)) / asked.num_tokens
        if arm.mode.row.surveys_all:  # as many in its later layers, the first two besides
            num_layers = self.model.spec.num_layers
            ratio = (2 + ratio * (num_layers - 2)) / num_layers
        return arm.mode, Recompute(ratio, seed=asked.seed)

    def _chosen(self, asked: AskedQuestion, clip: ClipSetting, ratio: float) -> tuple[int, ...]:
        """The tokens that ``cacheclip`` recomputes, counted over the placed chunks."""
        return tuple(np.flatnonzero(np.concatenate(self.select(asked, clip, ratio).chosen)).tolist())

    def _run(self, groups: Sequence[Group], sampling: SamplingParams) -> dict[int, list[EngineReply]]:
        """Answers by request, in the order of its questions."""
        requests = [
            replace(
                group.request,
                questions=tuple(map(self.prompts.encode_question, group.questions)),
                sampling=replace(sampling, watch_ids=tuple(sorted(group.watched))),
            )
            for group in groups
        ]
        asked = AskedTogether(self.engine, requests)
        asked.run()
        return {
            id(group): list(self._replies(len(group.questions), events))
            for group, events in zip(groups, asked.events, strict=True)
        }

    def _replies(self, num_questions: int, events: Sequence[Event]) -> Iterator[EngineReply]:
        eos_ids = self.model.spec.eos_ids
        selection = next((event for event in events if isinstance(event, SelectedEvent)), SelectedEvent(()))
        for index in range(num_questions):
            told = [event for event in events if isinstance(event, TokenEvent) and event.question == index]
            ids = [event.token_id for event in told if event.token_id not in eos_ids]
            yield EngineReply(self.prompts.decode(ids).strip(), selection, tuple(told[:STEPS]))


def _reference(asked: AskedQuestion) -> Key:
    return asked.text, tuple(chunk.chunk_id for chunk in asked.chunks(Over.BLOCKS))


def _divergence(reference: Sequence[TokenEvent], ours: Sequence[TokenEvent], watched: Sequence[int]) -> float:
    """Mean KL divergence in nats of the distributions of tokens, as far as the answer is the reference's,
    that in which they part included. ``watched``: tokens whose log-probabilities are told of ours."""
    found = []
    for theirs, own in zip(reference, ours, strict=False):
        found.append(divergence(dict(theirs.top_logprobs), dict(zip(watched, own.watched, strict=True))))
        if theirs.token_id != own.token_id:
            break
    return fmean(found)
