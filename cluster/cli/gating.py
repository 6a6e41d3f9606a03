"""Runs a gate: for each ``kv_context``, encoding and adapter an evaluation, its tables and its verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.cli.console import print_whole
from cluster.cli.session import LONG_DEADLINE_MS, Session
from cluster.config import QuiltConfig
from cluster.gate.answering import Models
from cluster.gate.evaluated import Evaluated
from cluster.gate.evaluation import Evaluation
from cluster.gate.held import Held, held, held_table, plan_for, unseen
from cluster.gate.modes import CONTROLS, MODES, OTHERS, ClipSetting, Comparison, parse_ratios
from cluster.gate.names import parse_names
from cluster.gate.own import OwnEvaluation
from cluster.gate.questions import read_questions
from cluster.gate.retrieved import RetrievedQuestions, only_collection, retrieve
from cluster.gate.served import BESIDE_PACKETS, LeftOut, say_left_out
from cluster.gate.servings import JudgedServing, Serving, advised, servings_details, servings_table
from cluster.gate.show import decision_table, kl_table, summary_table
from services.generator.config import SelectionConfig
from shared.clients.doors import retrieval_client, store_client
from shared.errors import ConfigError, CorruptData, FailedPrecondition, InvalidRequest, KvquiltError
from shared.generation.orders import NO_ADAPTER
from shared.identity import adapter_identity, digest
from shared.kv_types import KvContext
from shared.measuring.report import report_of, write_report
from shared.private_files import make_private_directory
from shared.verdict import Verdict
from shared.verdicts import keep_verdict

ALL = "all"
_UNSEEN = 1
"""Seed of invented questions that no verdict is made of."""
_NOT_SERVED = (InvalidRequest, FailedPrecondition, CorruptData)
Questions = int | RetrievedQuestions


class _NoQuestions(InvalidRequest):
    """Whatever way of serving is judged."""


@dataclass(frozen=True, slots=True)
class Gate:
    """``path``: of the verdicts. ``answers`` None: they are kept below the data directory until there is a
    verdict on each way of serving the model. ``check``: how many questions that a verdict was not made of are
    asked to see whether it holds."""

    session: Session
    config: QuiltConfig
    plan: Comparison
    path: Path
    threads: int
    processes: int
    minutes: float | None
    tolerance: float
    alpha: float
    answers: Path | None
    check: int = 0

    def own_questions(self, file: Path, collection: str, k: int | None) -> RetrievedQuestions:
        """Asks the running system what it would retrieve.

        Raises:
            KvquiltError: the file is of another form; nothing runs, or nothing is found.
        """
        questions = read_questions(file)
        session = self.session

        async def go() -> RetrievedQuestions:
            async with session.connect(retrieval_client) as searcher, session.connect(store_client) as store:
                ctx = session.context(LONG_DEADLINE_MS)
                name = collection or await only_collection(ctx, searcher)
                served = self.config.gateway
                return await retrieve(
                    ctx, searcher, store, name, questions, k or served.k, order=served.order
                )

        found = asyncio.run(go())
        if found.left_out:
            note = f"{found.left_out} questions are left out: nothing was retrieved for them"
            session.err.print(note, style="yellow")
        return found

    def run(self, servings: Sequence[Serving], questions: Questions, report: Path | None) -> None:
        """Of several servings one that cannot be judged is left out.

        Raises:
            KvquiltError: none can be judged; says why of the first.
            InvalidRequest: there is no verdict on one of them; those on the others were written.
        """
        several = len(servings) > 1
        judged: list[JudgedServing] = []
        reports: list[dict[str, Any]] = []
        left: list[LeftOut] = []
        errors: list[KvquiltError] = []
        for serving in servings:
            own_report = serving.report_of(report) if several and report else report
            try:
                one, evaluated = self._judge(serving, questions)
            except _NoQuestions:
                raise
            except _NOT_SERVED as error:
                errors.append(error)
                left.append(LeftOut(str(serving), error.detail))
                if several:
                    say_left_out(left[-1:], self.session.err)
                continue
            checked: list[Held] = []
            if one.verdict is not None:
                self._keep(one.verdict)
                if self.check:
                    one, checked = self._checked(one, questions)
            details = self._details(one, evaluated, checked)
            if own_report:
                write_report(own_report, evaluated.measurements(), details, threads=self.threads)
            reports.append(report_of(evaluated.measurements(), details, threads=self.threads))
            judged.append(one)
        if not judged:
            raise errors[0]
        if several:
            self._sum_up(judged, left, report)
        self.session.tell({"reports": reports, "summary": servings_details(judged, left)})
        for path in (path for one in judged if one.verdict for path in one.kept):
            path.unlink(missing_ok=True)
        if missing := [one for one in judged if one.verdict is None]:
            told = [f"{one.serving}: {one.why}" if several else one.why for one in missing]
            raise InvalidRequest("; ".join(told))

    def _judge(self, serving: Serving, questions: Questions) -> tuple[JudgedServing, Evaluated]:
        models = self._models(serving)
        kept = self.answers or self._kept(models, questions)
        evaluated = self._evaluate(models, questions, kept, self.plan)
        self._say(
            f"{evaluated.questions} questions; margin {100 * self.tolerance:g} points below full over the "
            f"whole blocks, alpha {self.alpha:g}; {serving}"
        )
        decision = decision_table(evaluated.decide(self.tolerance, self.alpha))
        for table in (summary_table(evaluated.found), decision, kl_table(evaluated.found)):
            print_whole(self.session.out, table)
        verdict, why = None, ""
        try:
            verdict = evaluated.verdict(self.tolerance, self.alpha)
        except InvalidRequest as error:
            why = error.detail
        return JudgedServing(serving, verdict, why, () if self.answers else (kept,)), evaluated

    def _checked(self, one: JudgedServing, questions: Questions) -> tuple[JudgedServing, list[Held]]:
        """Whether its verdict holds on questions that it did not take."""
        verdict = one.verdict
        assert verdict is not None
        others: Questions = self.check
        if isinstance(questions, RetrievedQuestions):
            others = unseen(questions, verdict, self.check)
            if not others.subjects:
                self._say("--check: the verdict took all of the questions; add others to the file", "yellow")
                return one, []
        models = self._models(one.serving)
        kept, plan = self._kept(models, others, _UNSEEN), plan_for(verdict, self.plan)
        found = held(self._evaluate(models, others, kept, plan, _UNSEEN), verdict)
        print_whole(self.session.out, held_table(found))
        return dataclasses.replace(one, kept=(*one.kept, kept)), found

    def _details(self, one: JudgedServing, evaluated: Evaluated, checked: Sequence[Held]) -> dict[str, Any]:
        return evaluated.details() | {
            "decision": dataclasses.asdict(evaluated.decide(self.tolerance, self.alpha)),
            "verdict": one.verdict and dataclasses.asdict(one.verdict),
            "no_verdict": one.why,
            "check": [dataclasses.asdict(group) | {"holds": group.holds} for group in checked],
        }

    def _keep(self, verdict: Verdict) -> None:
        keep_verdict(self.path, dataclasses.replace(verdict, made_s=time.time()))
        num_questions = sum(tally.num_questions for tally in verdict.asked.values())
        self._say(f"verdict (kv_context {verdict.kv_context}): {verdict.advice}", style="bold")
        self._say(
            f"it took {verdict.num_contexts} contexts with {num_questions} questions; written to "
            f"{self.path}; mode auto goes by it once the generator starts anew"
        )

    def _sum_up(self, judged: Sequence[JudgedServing], left: Sequence[LeftOut], report: Path | None) -> None:
        print_whole(self.session.out, servings_table(judged))
        if (best := advised(judged)) and best.verdict:
            self._say(f"advised: {best.serving.settings}: {best.verdict.advice}", style="bold")
            self._say(
                f"alpha {self.alpha:g} is that of each verdict by itself; that any of {len(judged)} is wrong "
                f"has a chance of at most {min(1.0, self.alpha * len(judged)):g}"
            )
        if report is not None:
            write_report(report, [], servings_details(judged, left), threads=self.threads)

    def _say(self, line: str, style: str = "") -> None:
        self.session.out.print(line, style=style, soft_wrap=True)

    def _evaluate(
        self, models: Models, questions: Questions, kept: Path, plan: Comparison, seed: int = 0
    ) -> Evaluated:
        """``seed`` of unseen questions: all of them are asked."""
        tolerance = None if seed else self.tolerance
        threads, processes, minutes, alpha = self.threads, self.processes, self.minutes, self.alpha
        if isinstance(questions, RetrievedQuestions):
            own = OwnEvaluation(models, plan, questions, threads, processes, minutes, tolerance, alpha)
            return own.run(kept, self.session.err)
        evaluation = Evaluation(
            models,
            plan,
            questions,
            seed=seed,
            threads=threads,
            processes=processes,
            minutes=minutes,
            tolerance=tolerance,
            alpha=alpha,
        )
        try:
            return evaluation.run(kept, self.session.err)
        except InvalidRequest as error:
            if error.detail.startswith(("--context-tokens", "--chunk-tokens")):
                raise _NoQuestions(
                    f"no questions can be generated for this model and these settings ({error.detail}); "
                    "give your own by --questions FILE"
                ) from None
            raise

    def _models(self, serving: Serving) -> Models:
        """
        Raises:
            ConfigError: the model is not served so.
        """
        config = self.config
        if config.prompt.packets and serving.kv_context is not KvContext.NONE:
            raise ConfigError(
                f"kv_context {serving.kv_context}: {BESIDE_PACKETS}: they are for isolated chunks (none)"
            )
        adapters = config.generator.engine.adapters
        return Models(
            config.model,
            config.selector.model if self.plan.clips else "",
            dataclasses.replace(config.ingestion, kv_context=serving.kv_context),
            config.generator.engine.dtype,
            encoding=serving.encoding,
            stop=config.generator.stop,
            adapter="" if serving.adapter == NO_ADAPTER else adapters[serving.adapter],
            device=config.generator.engine.device,
            weights=config.generator.engine.weights,
        )

    def _kept(self, models: Models, questions: Questions, seed: int = 0) -> Path:
        """Of all that answers depend on but their models, whose fingerprints are in the file, a file of its
        own."""
        whose = "generated" if isinstance(questions, int) else questions.digest
        adapter = adapter_identity(models.adapter) if models.adapter else ""
        made_of = repr((models, adapter, whose, self.plan.clips, self.plan.as_served, seed))
        name = digest(made_of.encode("utf-8", "surrogatepass"))
        directory = self.session.data_dir / "gate"
        make_private_directory(directory)
        return directory / f"{name}.jsonl"


def plan_of(modes: str, ratios: str, selection: SelectionConfig) -> Comparison:
    """``selection``: how ``cacheclip`` is served.

    Raises:
        InvalidRequest: names what is no mode, or no ratio.
    """
    parsed = parse_ratios(ratios)
    wanted = MODES if modes == ALL else parse_names("--modes", modes, MODES)
    return Comparison(
        tuple(mode for mode in wanted if mode in CONTROLS),
        (ClipSetting(selection.grouping, selection.reading),)
        if any(mode.deferred for mode in wanted)
        else (),
        parsed,
        tuple(mode for mode in wanted if mode in OTHERS),
        as_served=True,
    )


def adapters_of(names: str, config: QuiltConfig) -> tuple[str, ...]:
    """``none,legal``; empty: the configured one.

    Raises:
        InvalidRequest: no such adapter is configured.
    """
    adapters = config.generator.engine.adapters
    if names == ALL:
        return (NO_ADAPTER, *adapters)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name != NO_ADAPTER and name not in adapters:
            there = ", ".join(adapters) or "none is named there"
            raise InvalidRequest(f"--adapter: {name!r} is none of generator.engine.adapters ({there})")
    return tuple(dict.fromkeys(wanted)) or (config.generator.adapter or NO_ADAPTER,)
