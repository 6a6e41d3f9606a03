"""Checks a request before it enters the engine. Everything that can be known at once is refused at
once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from shared.engine.model.spec import ModelSpec
from shared.engine_config import EngineConfig
from shared.errors import ContextTooLong, InvalidRequest
from shared.generation.asked import (
    ChoiceRule,
    Chunk,
    GenerateRequest,
    PrefillRequest,
    SamplingParams,
    chain_of,
    total_len,
)
from shared.generation.forest import ForestRequest
from shared.generation.modes import Ape, GoesBy

RequestT = TypeVar("RequestT", bound=GenerateRequest | PrefillRequest | ForestRequest)


def check(
    request: GenerateRequest | PrefillRequest | ForestRequest,
    spec: ModelSpec,
    config: EngineConfig,
    has_text: bool,
    adapters: Collection[str] = (),
) -> None:
    """
    adapters: names of those that there are.

    Raises:
        InvalidRequest: names the field.
        ContextTooLong: prompt and answer do not fit the model's positions or its sliding window.
    """
    check_ids("prefix", request.prefix_ids, spec, may_be_empty=True)
    for index, chunk in enumerate(request.chunks):
        _check_chunk(f"chunks[{index}]", chunk, spec, _stored(request))
    for index, link in enumerate(request.links):
        check_ids(f"links[{index}]", link.token_ids, spec)
    if isinstance(request, PrefillRequest):
        if not request.chunks:
            raise InvalidRequest("chunks: is empty; give at least one chunk to prefill")
        _check_prefill(request, spec)
        return
    check_recompute(request)
    if spec.packets is not None and request.reuse.recomputes:
        raise InvalidRequest(
            f"reuse: {request.reuse.value} computes tokens anew, for which this model's packets were not "
            "trained; choose reordered, composite or full, or serve it without prompt.packets"
        )
    _check_adapter(request.adapter, adapters)
    if isinstance(request, ForestRequest):
        context = len(request.prefix_ids) + total_len(request.chunks)
        _check_length(context + 1, f"context ({context} tokens) and a branch", spec)
        return
    if not request.questions:
        raise InvalidRequest("questions: is empty; ask at least one")
    for index, question in enumerate(request.questions):
        check_ids(f"questions[{index}]", question, spec)
    sampling = request.sampling
    if sampling.watch_ids:
        check_ids("sampling.watch_ids", sampling.watch_ids, spec)
    check_stop("sampling", sampling, has_text)
    _check_answers(request, has_text)
    if request.num_branches > config.max_running_branches:
        per_question = "beams.width" if request.beams else "sampling.n"
        raise InvalidRequest(
            f"questions × {per_question}: {request.num_branches} branches; "
            f"this engine runs at most {config.max_running_branches} at once"
        )
    _check_prompt(request, spec)


def without_packets(request: RequestT, spec: ModelSpec) -> RequestT:
    """The request as the engine computes it: what reads no stored KV reads chunks without packets."""
    if spec.packets is None or _stored(request):
        return request
    plain = (replace(chunk, token_ids=spec.packets.plain(chunk.token_ids)) for chunk in request.chunks)
    return replace(request, chunks=tuple(plain))


def _stored(request: GenerateRequest | PrefillRequest | ForestRequest) -> bool:
    return isinstance(request, PrefillRequest) or request.reuse.row.stored


def _check_chunk(field: str, chunk: Chunk, spec: ModelSpec, stored: bool) -> None:
    packets = spec.packets
    if packets is None or not stored:
        check_ids(field, chunk.token_ids, spec)
        return
    check_ids(field, packets.plain(chunk.token_ids), spec)
    if chunk.parent_id:
        raise InvalidRequest(
            f"{field}: is computed behind another chunk, and packets are for isolated ones; encode the "
            "collection again with ingestion.kv_context none, or serve the model without prompt.packets"
        )
    if packets.around(chunk.token_ids) != chunk.token_ids:
        raise InvalidRequest(
            f"{field}: does not stand between the model's packets (ids {packets.first} to "
            f"{packets.first + len(packets) - 1}); send its text, or give it their ids"
        )


def _check_prefill(request: PrefillRequest, spec: ModelSpec) -> None:
    for index, chunk in enumerate(request.chunks):
        chain = chain_of(chunk, (*request.links, *request.chunks))
        if chain is None:
            raise InvalidRequest(
                f"chunks[{index}]: the chunks in front of it are not all given; send them as its context"
            )
        length = len(request.prefix_ids) + total_len((*chain, chunk))
        what = f"chunks[{index}]: prefix, context and chunk ({length} tokens)"
        _check_length(length, what, spec, "send less in front of it, or a shorter chunk")


def _check_prompt(request: GenerateRequest, spec: ModelSpec) -> None:
    """Does not blame the chunks for what cannot fit whatever they are."""
    longest, max_tokens = max(map(len, request.questions)), request.sampling.limit
    without_chunks = len(request.prefix_ids) + longest
    prompt = without_chunks + total_len(request.chunks)
    # The last generated token is never fed back, so it needs no position.
    _check_length(
        without_chunks + max_tokens - 1,
        f"prefix and question ({without_chunks} tokens, without any chunk) and max_tokens ({max_tokens})",
        spec,
        "ask a shorter question, or for fewer tokens",
    )
    _check_length(prompt + max_tokens - 1, f"prompt ({prompt} tokens) and max_tokens ({max_tokens})", spec)


def check_recompute(request: GenerateRequest | ForestRequest) -> None:
    """Checks that what is to be computed anew fits the mode and the context.

    Raises:
        InvalidRequest: names the field.
    """
    mode, recompute = request.reuse, request.recompute
    goes_by = mode.row.goes_by
    if (recompute.tokens or recompute.by_question) and goes_by is not GoesBy.TOKENS:
        raise InvalidRequest(
            f"recompute.tokens: mode {mode.value} does not go by a list; leave it empty, or set reuse "
            "to tokens"
        )
    if recompute.ratio is not None and goes_by is not GoesBy.RATIO:
        remedy = "give recompute.tokens alone" if goes_by is GoesBy.TOKENS else "leave it out"
        raise InvalidRequest(f"recompute.ratio: mode {mode.value} does not go by a ratio; {remedy}")
    if isinstance(request, ForestRequest) and mode.needs_question:
        raise InvalidRequest(
            f"reuse: {mode.value} goes by the question, and a forest is opened without one; choose "
            "another mode"
        )
    if not mode.row.weighed and request.ape != Ape():
        raise InvalidRequest(
            f"ape: mode {mode.value} attends as the model does; leave it out, or set reuse to ape"
        )
    num_tokens = total_len(request.chunks)
    num_questions = 0 if isinstance(request, ForestRequest) else len(request.questions)
    if recompute.by_question and (recompute.tokens or len(recompute.by_question) != num_questions):
        raise InvalidRequest(
            f"recompute.by_question: {len(recompute.by_question)} lists for {num_questions} questions; give "
            "one for each, and no other"
        )
    for token in (t for tokens in recompute.sets for t in tokens):
        if not 0 <= token < num_tokens:
            raise InvalidRequest(
                f"recompute.tokens: {token} is out of range; the chunks have {num_tokens} tokens, "
                "counted from 0"
            )


def _check_adapter(name: str, adapters: Collection[str]) -> None:
    if name and name not in adapters:
        there = f"there are {', '.join(sorted(adapters))}" if adapters else "there are none (engine.adapters)"
        raise InvalidRequest(f"adapter: there is no {name!r}; {there}, or leave it out")


def _check_answers(request: GenerateRequest, has_text: bool) -> None:
    """Options that contradict each other."""
    sampling, beams, choose = request.sampling, request.beams, request.choose
    if beams is not None:
        if choose is not None:
            raise InvalidRequest(
                "choose: beams are ranked by their scores already; give beams or choose, not both"
            )
        if sampling.n > beams.width:
            raise InvalidRequest(
                f"sampling.n: {sampling.n} answers are more than beams.width ({beams.width}) can give"
            )
        if sampling.temperature > 0:
            raise InvalidRequest(
                "sampling.temperature: beam search does not sample; leave it at 0, or leave beams out"
            )
        if sampling.stop:
            raise InvalidRequest(
                "sampling.stop: beams end at the model's end mark or at max_tokens; leave stop or beams out"
            )
        if sampling.response_format is not None:
            raise InvalidRequest(
                "sampling.response_format: beams are not searched in a grammar; leave it or beams out, or "
                "have several samples instead"
            )
    if choose is not None:
        if sampling.n < 2:
            raise InvalidRequest("sampling.n: a choice needs at least 2 thoughts")
        if sampling.temperature == 0:
            raise InvalidRequest("sampling.temperature: at 0 all thoughts are the same; set it above 0")
        if choose.rule is ChoiceRule.MAJORITY and not has_text:
            raise InvalidRequest(
                "choose: a majority compares text, and this model has no tokenizer; choose by mean-logprob"
            )
        if choose.rule is ChoiceRule.MEAN_LOGPROB and choose.marker:
            raise InvalidRequest("choose.marker: only a majority reads final answers; leave it empty")


def check_stop(field: str, sampling: SamplingParams, has_text: bool) -> None:
    """
    Raises:
        InvalidRequest: stop strings for a model that has no text.
    """
    if sampling.stop and not has_text:
        raise InvalidRequest(
            f"{field}.stop: this model has no tokenizer, so stop strings cannot be recognised"
        )


def check_ids(field: str, token_ids: Sequence[int], spec: ModelSpec, may_be_empty: bool = False) -> None:
    """
    Raises:
        InvalidRequest: there are none, or one is outside the vocabulary.
    """
    if not token_ids and not may_be_empty:
        raise InvalidRequest(f"{field}: is empty")
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < spec.vocab_size:
        wrong = next(one for one in token_ids if not 0 <= one < spec.vocab_size)
        raise InvalidRequest(
            f"{field}: token id {wrong} is outside the vocabulary (0 to {spec.vocab_size - 1})"
        )


def _check_length(
    length: int, what: str, spec: ModelSpec, remedy: str = "ask for fewer or shorter chunks"
) -> None:
    if length > spec.max_positions:
        raise ContextTooLong(f"{what} need {length} positions; the model has {spec.max_positions}: {remedy}")
    if spec.sliding_window is not None and length > spec.sliding_window:
        raise ContextTooLong(
            f"{what} need {length} positions; the model's sliding window is {spec.sliding_window}: {remedy}"
        )
