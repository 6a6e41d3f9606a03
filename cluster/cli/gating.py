"""Runs a gate: for each ``kv_context`` and encoding an evaluation, its tables and its verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.cli.console import print_whole
from cluster.cli.remote import retrieval_client, store_client
from cluster.cli.session import LONG_DEADLINE_MS, Session
from cluster.config import QuiltConfig
from cluster.gate.answering import Models
from cluster.gate.evaluated import Evaluated
from cluster.gate.evaluation import Evaluation
from cluster.gate.modes import CONTROLS, MODES, OTHERS, ClipSetting, Comparison, parse_ratios
from cluster.gate.names import parse_names
from cluster.gate.own import OwnEvaluation
from cluster.gate.questions import read_questions
from cluster.gate.retrieved import RetrievedQuestions, only_collection, retrieve
from cluster.gate.show import decision_table, kl_table, summary_table
from services.generator.config import SelectionConfig
from shared.errors import InvalidRequest
from shared.generation.orders import NO_ADAPTER
from shared.identity import digest
from shared.kv_types import KvContext
from shared.measuring.report import write_report
from shared.verdicts import keep_verdict


@dataclass(frozen=True, slots=True)
class Gate:
    """``path``: of the verdicts. ``answers`` None: they are kept below the data directory until there is a
    verdict. ``adapter``: name; empty: the configured one."""

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
    adapter: str = ""

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

    def run(
        self,
        ways: Sequence[tuple[KvContext, str]],
        questions: int | RetrievedQuestions,
        report: Path | None,
    ) -> None:
        """
        Raises:
            InvalidRequest: there are no questions, or no verdict by them; nothing was written for that way.
        """
        for context, encoding in ways:
            models = self._models(context, encoding)
            kept, own = self.answers or self._kept(models, questions), self.answers is not None
            try:
                evaluated = self._evaluate(models, questions, kept)
            except InvalidRequest as error:
                if isinstance(questions, int) and error.detail.startswith(
                    ("--context-tokens", "--chunk-tokens")
                ):
                    raise InvalidRequest(
                        f"no questions can be generated for this model and these settings ({error.detail}); "
                        "give your own by --questions FILE"
                    ) from None
                raise
            self._show(evaluated, report, context, encoding, len(ways) > 1)
            if not own:
                kept.unlink(missing_ok=True)

    def _show(
        self, evaluated: Evaluated, report: Path | None, context: KvContext, encoding: str, several: bool
    ) -> None:
        out = self.session.out
        out.print(
            f"{evaluated.questions} questions; margin {100 * self.tolerance:g} points below full over the "
            f"whole blocks, alpha {self.alpha:g}; kv_context {context}, encoding {encoding}",
            soft_wrap=True,
        )
        print_whole(out, summary_table(evaluated.found))
        decision = evaluated.decide(self.tolerance, self.alpha)
        print_whole(out, decision_table(decision))
        print_whole(out, kl_table(evaluated.found))
        if report is not None:
            if several:
                report = report.with_name(f"{report.stem}.{context}.{encoding}{report.suffix}")
            details = evaluated.details() | {"decision": dataclasses.asdict(decision)}
            write_report(report, evaluated.measurements(), details, threads=self.threads)
        verdict = evaluated.verdict(self.tolerance, self.alpha)
        keep_verdict(self.path, dataclasses.replace(verdict, made_s=time.time()))
        out.print(f"verdict (kv_context {verdict.kv_context}): {verdict.advice}", style="bold")
        out.print(
            f"it took {verdict.num_contexts} contexts; written to {self.path}; mode auto goes by it once the "
            "generator starts anew",
            soft_wrap=True,
        )

    def _evaluate(self, models: Models, questions: int | RetrievedQuestions, kept: Path) -> Evaluated:
        limits = (self.threads, self.processes, self.minutes, self.tolerance, self.alpha)
        threads, processes, minutes, tolerance, alpha = limits
        if isinstance(questions, RetrievedQuestions):
            own = OwnEvaluation(models, self.plan, questions, threads, processes, minutes, tolerance, alpha)
            return own.run(kept, self.session.err)
        return Evaluation(
            models,
            self.plan,
            questions,
            threads=threads,
            processes=processes,
            minutes=minutes,
            tolerance=tolerance,
            alpha=alpha,
        ).run(kept, self.session.err)

    def _models(self, context: KvContext, encoding: str) -> Models:
        config = self.config
        return Models(
            config.model,
            config.selector.model if self.plan.clips else "",
            dataclasses.replace(config.ingestion, kv_context=context),
            config.generator.engine.dtype,
            encoding=encoding,
            stop=config.generator.stop,
            adapter=self._adapter_directory(),
        )

    def _adapter_directory(self) -> str:
        """
        Raises:
            InvalidRequest: no such adapter is configured.
        """
        adapters, name = self.config.generator.engine.adapters, self.adapter or self.config.generator.adapter
        if name in ("", NO_ADAPTER):
            return ""
        if name not in adapters:
            there = ", ".join(adapters) or "none is named there"
            raise InvalidRequest(f"--adapter: {name!r} is none of generator.engine.adapters ({there})")
        return adapters[name]

    def _kept(self, models: Models, questions: int | RetrievedQuestions) -> Path:
        """Of all that answers depend on but their models, whose fingerprints are in the file, a file of its
        own."""
        whose = "generated" if isinstance(questions, int) else questions.digest
        made_of = repr((models, whose, self.plan.clips)).encode("utf-8", "surrogatepass")
        return self.session.data_dir / "gate" / f"{digest(made_of)}.jsonl"


def plan_of(modes: str, ratios: str, selection: SelectionConfig) -> Comparison:
    """``selection``: how ``cacheclip`` is served.

    Raises:
        InvalidRequest: names what is no mode, or no ratio.
    """
    parsed = parse_ratios(ratios)
    clip = ClipSetting(selection.grouping, selection.reading)
    if not modes:
        return Comparison(clips=(clip,), ratios=parsed)
    wanted = parse_names("--modes", modes, MODES)
    return Comparison(
        tuple(mode for mode in wanted if mode in CONTROLS),
        (clip,) if any(mode.deferred for mode in wanted) else (),
        parsed,
        tuple(mode for mode in wanted if mode in OTHERS),
    )
