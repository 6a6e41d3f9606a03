"""How answers are made where not by sampling alone: the values that callers pass and services pass on.
Torch-free."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from protos.kvquilt.v1 import common_pb2
from shared.errors import InvalidRequest

EarlyStopping = Literal["first", "estimate", "never"]
ChoiceRule = Literal["mean-logprob", "majority"]

_STOPPING: dict[EarlyStopping, common_pb2.EarlyStopping] = {
    "first": common_pb2.EARLY_STOPPING_FIRST,
    "estimate": common_pb2.EARLY_STOPPING_ESTIMATE,
    "never": common_pb2.EARLY_STOPPING_NEVER,
}
_RULE: dict[ChoiceRule, common_pb2.ChoiceRule] = {
    "mean-logprob": common_pb2.CHOICE_RULE_MEAN_LOGPROB,
    "majority": common_pb2.CHOICE_RULE_MAJORITY,
}


@dataclass(frozen=True, slots=True)
class Beams:
    """Beam search; the proto says what the fields mean. Ranges are checked by the generator."""

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = "estimate"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several thoughts is chosen."""

    rule: ChoiceRule
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Margins:
    """Writing in the Margins; the proto says what the fields mean. Empty and 0: the service's own."""

    instruction: str = ""
    relevance: str = ""
    yes: str = ""
    no: str = ""
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Decoding:
    """At most one of ``beams`` and ``choose``; neither: ``Sampling`` says it all. ``margins`` are written
    before either."""

    beams: Beams | None = None
    choose: Choice | None = None
    margins: Margins | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """``answer`` and ``votes``: of a majority, what it says and how many say it."""

    question: int
    sample: int
    answer: str = ""
    votes: int = 0


@dataclass(frozen=True, slots=True)
class MarginToken:
    """``chunk``: place in the context."""

    chunk: int
    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Margin:
    """A whole margin; ``kept``: it stands in the answer's context."""

    chunk: int
    text: str
    kept: bool
    yes_logprob: float = 0.0
    no_logprob: float = 0.0


def decoding_to_pb(decoding: Decoding) -> common_pb2.Decoding:
    """
    Raises:
        InvalidRequest: both beams and a choice.
    """
    if decoding.beams is not None and decoding.choose is not None:
        raise InvalidRequest(
            "choose: beams are ranked by their scores already; give beams or choose, not both"
        )
    beams = choose = margins = None
    if decoding.beams is not None:
        beams = common_pb2.Beams(
            width=decoding.beams.width,
            length_penalty=decoding.beams.length_penalty,
            early_stopping=_STOPPING[decoding.beams.early_stopping],
        )
    if decoding.choose is not None:
        choose = common_pb2.Choice(rule=_RULE[decoding.choose.rule], marker=decoding.choose.marker)
    if decoding.margins is not None:
        margins = common_pb2.Margins(**dataclasses.asdict(decoding.margins))
    return common_pb2.Decoding(beams=beams, choose=choose, margins=margins)


def decoding_of(pb: common_pb2.Decoding) -> Decoding:
    """
    Raises:
        InvalidRequest: a rule that this version does not know.
    """
    return Decoding(
        beams=_beams_of(pb.beams) if pb.HasField("beams") else None,
        choose=_choice_of(pb.choose) if pb.HasField("choose") else None,
        margins=_margins_of(pb.margins) if pb.HasField("margins") else None,
    )


def chosen_to_pb(chosen: Chosen) -> common_pb2.Chosen:
    return common_pb2.Chosen(
        question=chosen.question, sample=chosen.sample, answer=chosen.answer, votes=chosen.votes
    )


def chosen_of(pb: common_pb2.Chosen) -> Chosen:
    return Chosen(pb.question, pb.sample, pb.answer, pb.votes)


def margin_token_to_pb(token: MarginToken) -> common_pb2.MarginToken:
    return common_pb2.MarginToken(**dataclasses.asdict(token))


def margin_token_of(pb: common_pb2.MarginToken) -> MarginToken:
    return MarginToken(pb.chunk, pb.token_id, pb.text)


def margin_to_pb(margin: Margin) -> common_pb2.Margin:
    return common_pb2.Margin(**dataclasses.asdict(margin))


def margin_of(pb: common_pb2.Margin) -> Margin:
    return Margin(pb.chunk, pb.text, pb.kept, pb.yes_logprob, pb.no_logprob)


def _beams_of(pb: common_pb2.Beams) -> Beams:
    stopping = {value: name for name, value in _STOPPING.items()} | {
        common_pb2.EARLY_STOPPING_UNSPECIFIED: "estimate"
    }
    if pb.early_stopping not in stopping:
        raise InvalidRequest(
            f"decoding.beams.early_stopping: {pb.early_stopping} is not known; use FIRST, ESTIMATE or NEVER"
        )
    return Beams(
        pb.width, pb.length_penalty if pb.HasField("length_penalty") else 1.0, stopping[pb.early_stopping]
    )


def _choice_of(pb: common_pb2.Choice) -> Choice:
    rules = {value: name for name, value in _RULE.items()}
    if pb.rule not in rules:
        raise InvalidRequest("decoding.choose.rule: is not set; use MEAN_LOGPROB or MAJORITY")
    return Choice(rules[pb.rule], pb.marker)


def _margins_of(pb: common_pb2.Margins) -> Margins:
    return Margins(pb.instruction, pb.relevance, pb.yes, pb.no, pb.max_tokens)
