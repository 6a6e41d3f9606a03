"""`kvquilt train`: what it is fed with, where it goes on, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from cluster.cli.main import main
from cluster.paths import DEMO_MODEL
from cluster.training.adapter import AdapterTask
from cluster.training.contexts import ContextMaker
from cluster.training.examples import (
    Example,
    ExampleDocument,
    invented_examples,
    read_examples,
    write_examples,
)
from cluster.training.run import interruptible, train
from cluster.training.task import TrainedModel
from services.ingestion.config import IngestionConfig
from services.training.adapter.settings import AdapterSettings
from services.training.names import Split
from shared.engine.model.lora_files import read_adapter
from shared.engine.model.packets import read_packets
from shared.errors import InvalidRequest
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer

LINE = {"documents": [{"title": "Lease", "text": "The lease of Velbrin."}], "questions": ["Who signed it?"]}
QUICK = [
    *("--model", "demo", "--updates", "4", "--contexts-per-update", "2", "--questions", "2"),
    *("--rank", "2", "--answer-tokens", "4", "--evaluate-every", "2", "--checkpoint-every", "2"),
]


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def adapter(*args: object) -> Result:
    return CliRunner().invoke(main, ["train", "adapter", *map(str, args)], catch_exceptions=False)


def file_of(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def mix_of(folder: Path, shares: tuple[float, float] = (3, 1)) -> tuple[str, ...]:
    """Options of two kinds, of three contexts each."""
    found: list[str] = []
    for seed, (kind, share) in enumerate(zip(("wiki", "rules"), shares, strict=True)):
        invented = invented_examples(seed, 3)
        file = folder / f"{kind}.jsonl"
        write_examples(file, (dataclasses.replace(e, questions=e.questions[:2]) for e in invented))
        found += ("--mix", f"{kind}={share:g}:{file}")
    return tuple(found)


class TestTheCommand:
    def test_trains_on_invented_documents_and_goes_on(self, tmp_path: Path) -> None:
        first = adapter(*QUICK, "--invented", 3, "--out", tmp_path / "qa")
        assert first.exit_code == 0, first.output
        assert "update 2/4  loss " in first.output
        assert "best at update " in first.output
        assert "--adapter qa" in first.output
        weights = (tmp_path / "qa" / "adapter_model.safetensors").read_bytes()
        again = adapter(*QUICK, "--invented", 3, "--out", tmp_path / "qa")
        assert again.exit_code == 0, again.output
        assert "goes on at update 4 of 4" in again.output
        assert (tmp_path / "qa" / "adapter_model.safetensors").read_bytes() == weights
        made = read_adapter(tmp_path / "qa", "qa")
        assert made.facts.kv_context is KvContext.DOCUMENT
        assert made.facts.recipe["rank"] == "2"
        assert made.base == str(DEMO_MODEL)

    def test_trains_on_a_file_over_isolated_chunks(self, tmp_path: Path) -> None:
        examples = [
            {
                "documents": [{"title": e.documents[0].title, "text": e.documents[0].text}],
                "questions": e.questions,
            }
            for e in invented_examples(1, 3)
        ]
        data = file_of(tmp_path / "data.jsonl", *examples)
        done = adapter(*QUICK, "--data", data, "--kv-context", "none", "--out", tmp_path / "qa")
        assert done.exit_code == 0, done.output
        assert read_adapter(tmp_path / "qa", "qa").facts.kv_context is KvContext.NONE

    def test_trains_on_labelled_answers_and_goes_on(self, tmp_path: Path) -> None:
        line = {**LINE, "answers": ["Ann Ostell."]}
        other = {"documents": ["The rent of Orrin is due in May."], "question": "When?", "answer": "In May."}
        data = file_of(tmp_path / "data.jsonl", line, other, {**line, "questions": ["Who?"]})
        args = (*QUICK, "--target", "answers", "--data", data, "--out", tmp_path / "qa")
        first = adapter(*args)
        assert first.exit_code == 0, first.output
        assert "without the adapter: cross-entropy " in first.output
        assert not list((tmp_path / "qa" / "cache").glob("taught-*"))
        made = read_adapter(tmp_path / "qa", "qa")
        assert made.facts.recipe["target"] == "answers"
        assert "goes on at update 4 of 4" in adapter(*args).output

    def test_of_a_mix_every_kind_is_evaluated_and_the_shares_must_stay(self, tmp_path: Path) -> None:
        first = adapter(*QUICK, *mix_of(tmp_path), "--out", tmp_path / "qa")
        assert first.exit_code == 0, first.output
        assert "wiki: 75 % of the samples, 3 there (wiki.jsonl)" in first.output
        assert re.search(r"held out: KL [\d.]+, wiki [\d.]+, rules [\d.]+, agreement", first.output)
        recipe = read_adapter(tmp_path / "qa", "qa").facts.recipe
        assert recipe["mixture"].startswith("wiki: 75 %")
        other = adapter(*QUICK, *mix_of(tmp_path, (1, 1)), "--out", tmp_path / "qa")
        assert other.exit_code == 2
        assert "was made with mixture" in " ".join(other.output.split())

    def test_labelled_answers_come_in_a_mix_too(self, tmp_path: Path) -> None:
        line = {**LINE, "answers": ["Ann Ostell."]}
        lease = file_of(tmp_path / "lease.jsonl", line, {**line, "questions": ["Who?"]})
        rent = file_of(tmp_path / "rent.jsonl", line, {**line, "questions": ["By whom?"]})
        mix = ("--mix", f"lease=1:{lease}", "--mix", f"rent=2:{rent}")
        done = adapter(*QUICK, "--target", "answers", *mix, "--out", tmp_path / "qa")
        assert done.exit_code == 0, done.output
        assert "rent: 66.67 % of the samples, 2 there (rent.jsonl)" in done.output
        assert "lease " in done.output.split("held out: cross-entropy ")[1]

    @pytest.mark.parametrize("option", ["--invented", "--collection"])
    def test_a_mix_stands_alone(self, option: str, tmp_path: Path) -> None:
        refused = adapter(*QUICK, *mix_of(tmp_path), option, "3", "--out", tmp_path / "qa")
        assert refused.exit_code == 2
        assert f"--mix: says what is trained on; leave out {option}" in " ".join(refused.output.split())

    def test_invented_answers_are_labelled(self, tmp_path: Path) -> None:
        done = adapter(*QUICK, "--target", "answers", "--invented", 3, "--out", tmp_path / "qa")
        assert done.exit_code == 0, done.output

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            (LINE, "answers: is missing"),
            (
                {**LINE, "answers": ["a", "b"]},
                "answers: there must be one for each question, got 2 for 1",
            ),
            ({"question": "Who?", "answer": "Ann"}, "documents: is missing; an adapter learns to read them"),
            (
                {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
                "messages: an adapter learns to read documents",
            ),
        ],
    )
    def test_lines_without_documents_or_answers_are_named(
        self, line: dict[str, Any], told: str, tmp_path: Path
    ) -> None:
        data = file_of(tmp_path / "data.jsonl", {**LINE, "answers": ["Ann"]}, line)
        refused = adapter(*QUICK, "--target", "answers", "--data", data, "--out", tmp_path / "qa")
        assert refused.exit_code == 2
        assert f"line 2: {told}" in refused.output.replace("\n", " ")

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            (("--rank", 2), "--data: name a file, or say --invented N"),
            (("--target", "answers"), "--data: name a file, or say --invented N, one of the two"),
            (
                ("--target", "answers", "--collection", "docs"),
                "--collection: its documents come without",
            ),
            (("--invented", 3, "--rank", 0), "rank: must be at least 1"),
            (("--invented", 3, "--targets", "q_proj,c_attn"), "no linear layer 'c_attn'"),
        ],
    )
    def test_tells_what_is_wrong_in_a_line(self, args: tuple[object, ...], told: str, tmp_path: Path) -> None:
        refused = adapter(*QUICK, *args, "--out", tmp_path / "qa")
        assert refused.exit_code == 2
        assert told in refused.output

    def test_another_setting_needs_another_folder(self, tmp_path: Path) -> None:
        assert adapter(*QUICK, "--invented", 3, "--out", tmp_path / "qa").exit_code == 0
        refused = adapter(*QUICK, "--invented", 3, "--seed", 1, "--out", tmp_path / "qa")
        assert refused.exit_code == 2
        assert "was made with seed '0', not '1'" in refused.output


class TestPackets:
    QUICK = (
        *("--model", "demo", "--updates", "2", "--contexts-per-update", "2", "--questions", "2"),
        *("--header", "2", "--trailer", "1", "--answer-tokens", "4", "--evaluate-every", "1"),
    )

    def packets(self, *args: object) -> Result:
        command = ["train", "packets", *self.QUICK, *map(str, args)]
        return CliRunner().invoke(main, command, catch_exceptions=False)

    def test_are_trained_over_isolated_chunks_and_go_on(self, tmp_path: Path) -> None:
        args = ("--invented", 3, "--begin-with", "# ", "--out", tmp_path)
        first = self.packets(*args)
        assert first.exit_code == 0, first.output
        assert "update 2/2  loss " in first.output
        assert "without packets: KL " in first.output
        assert f"serve them: prompt.packets: {tmp_path}" in first.output
        made = read_packets(tmp_path)
        assert (made.facts.num_header, made.facts.num_trailer) == (2, 1)
        assert made.facts.kv_context is KvContext.NONE
        assert made.facts.recipe["begin_with"] == "# "
        again = self.packets(*args)
        assert "goes on at update 2 of 2" in again.output
        assert torch.equal(read_packets(tmp_path).vectors_PE, made.vectors_PE)

    def test_of_a_mix_are_trained_on_the_shares_of_its_kinds_and_go_on(self, tmp_path: Path) -> None:
        mix, out = mix_of(tmp_path), tmp_path / "out"
        first = self.packets(*mix, "--out", out)
        assert first.exit_code == 0, first.output
        told = (
            "wiki: 75 % of the samples, 3 there (wiki.jsonl)",
            "rules: 25 % of the samples, 3 there (rules.jsonl)",
        )
        assert all(line in first.output for line in told)
        made = read_packets(out)
        assert made.facts.recipe["mixture"] == "; ".join(told)
        assert "goes on at update 2 of 2" in self.packets(*mix, "--out", out).output
        assert torch.equal(read_packets(out).vectors_PE, made.vectors_PE)
        anew = self.packets(*mix, "--out", tmp_path / "anew")
        assert anew.exit_code == 0, anew.output
        assert torch.equal(read_packets(tmp_path / "anew").vectors_PE, made.vectors_PE)
        other = self.packets(*mix_of(tmp_path, (1, 1)), "--out", out)
        assert other.exit_code == 2
        assert "was made with mixture" in " ".join(other.output.split())

    @pytest.mark.parametrize(
        ("mix", "told"),
        [
            (("qa={good}",), "--mix: expected KIND=SHARE:FILE"),
            (("a=0:{good}",), "--mix: a: share: must be a number above 0, got '0'"),
            (("a=1:{good}", "b=1:{bad}"), "bad.jsonl, line 2: questions: is missing"),
            (("a=1:{good}", "b=1:nowhere.jsonl"), "--mix: nowhere.jsonl cannot be read"),
            (("a=1:{good}",), "mix: a: it takes two samples at least"),
        ],
    )
    def test_a_mix_of_another_form_is_named(self, mix: tuple[str, ...], told: str, tmp_path: Path) -> None:
        files = {
            "good": file_of(tmp_path / "good.jsonl", LINE),
            "bad": file_of(tmp_path / "bad.jsonl", LINE, {"documents": [{"text": "a"}]}),
        }
        options = [option for one in mix for option in ("--mix", one.format(**files))]
        refused = self.packets(*options, "--out", tmp_path / "out")
        assert refused.exit_code == 2
        assert told in " ".join(refused.output.split())

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            (("--mix", "a=1:b"), "--mix: says what is trained on; leave out --invented"),
            (("--kv-context", "document"), "--kv-context: packets are trained for isolated chunks"),
            (("--header", 0, "--trailer", 0), "num_header: there must be a vector"),
        ],
    )
    def test_tells_what_is_wrong_in_a_line(self, args: tuple[object, ...], told: str, tmp_path: Path) -> None:
        refused = self.packets("--invented", 3, *args, "--out", tmp_path)
        assert refused.exit_code == 2
        assert told in refused.output


@pytest.mark.usefixtures("one_thread")
class TestInterruption:
    @pytest.fixture(autouse=True)
    def _signals_arrive(self) -> Iterator[None]:
        """Also where the tests run in the background, which ignores Ctrl-C."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def test_leaves_a_checkpoint_from_which_the_result_is_the_same(self, tmp_path: Path) -> None:
        def task(out: str) -> AdapterTask:
            settings = AdapterSettings(
                updates=4, contexts_per_update=2, rank=2, answer_tokens=4, evaluate_every=1
            )
            served = TrainedModel(IngestionConfig(str(DEMO_MODEL), 96), num_questions=2)
            return AdapterTask(served, settings, tmp_path / out)

        def interrupt(line: str) -> None:
            said.append(line)
            if line.startswith("update 2/"):
                os.kill(os.getpid(), signal.SIGINT)

        said: list[str] = []
        trainer = task("parts").loop(invented_examples(0, 3), lambda done, of: None, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(trainer, interrupt)
        assert said[-1].startswith("checkpoint at update 2 in ")
        again = task("parts").loop(invented_examples(0, 3), lambda done, of: None, said.append)
        once = task("once").loop(invented_examples(0, 3), lambda done, of: None, said.append)
        assert again.update == 2
        train(again, said.append)
        train(once, said.append)
        assert again.losses == once.losses
        assert again.best.evaluation == once.best.evaluation

    def test_only_the_first_ctrl_c_is_patient(self) -> None:
        with interruptible() as interrupted:
            assert not interrupted()
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class TestFiles:
    def test_a_line_is_a_context(self, tmp_path: Path) -> None:
        other = {
            "documents": [{"text": "a"}, {"text": "b", "lang": "de"}],
            "questions": ["c?", "d?"],
            "id": 7,
        }
        path = tmp_path / "data.jsonl"
        path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps(other)}\n", encoding="utf-8")
        first, second = read_examples(path)
        assert first == Example(
            f"{path}, line 1", (ExampleDocument("Lease", "The lease of Velbrin."),), ("Who signed it?",)
        )
        assert second.name == f"{path}, line 3"
        assert second.documents[1] == ExampleDocument("", "b")

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("{", "line 2: is no JSON"),
            ("[]", "line 2: is no JSON object"),
            (10**5 * "[", r"line 2: is no JSON \(it is nested too deeply\)"),
            (r'{"documents": [{"text": "\ud83d"}]}', "line 2: documents: holds half of a surrogate pair"),
            ('{"question": "a"}', "line 2: documents: is missing"),
            ('{"documents": [{"text": "a"}]}', "line 2: questions: is missing"),
            ('{"documents": [], "questions": ["a"]}', "line 2: documents: expected a list that is not empty"),
            ('{"documents": ["a"], "questions": ["a"]}', r"line 2: documents\[0\]: expected an object"),
            ('{"documents": [{"text": " "}], "questions": ["a"]}', r"line 2: documents\[0\].text: expected"),
            (
                '{"documents": [{"text": "a"}, {"text": "b", "title": 3}], "questions": ["a"]}',
                r"line 2: documents\[1\].title: expected text, got 3",
            ),
            ('{"documents": [{"text": "a"}], "questions": ["a", null]}', r"line 2: questions\[1\]: expected"),
        ],
    )
    def test_a_line_of_another_form_is_named_with_its_field(
        self, line: str, told: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "data.jsonl"
        path.write_text(f"{json.dumps(LINE)}\n{line}\n", encoding="utf-8")
        with pytest.raises(InvalidRequest, match=f"data.jsonl, {told}"):
            read_examples(path)

    def test_files_without_lines_or_text(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_text("\n")
        (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(InvalidRequest, match="has no lines"):
            read_examples(tmp_path / "empty")
        with pytest.raises(InvalidRequest, match="cannot be read as text"):
            read_examples(tmp_path / "binary")


class TestInvented:
    def test_the_same_seed_invents_the_same(self) -> None:
        assert list(invented_examples(3, 4)) == list(invented_examples(3, 4))
        assert list(invented_examples(3, 4)) != list(invented_examples(4, 4))

    def test_names_are_those_of_training(self) -> None:
        titles = [document.title for e in invented_examples(0, 12) for document in e.documents]
        assert "" in titles  # a document apart from the one that names its thing
        ships = [title.replace("The ", "the ", 1) for title in titles if title.startswith("The ")]
        assert not any(map(Split.HELD_OUT.holds, ships))


class TestContexts:
    def maker(self, context: KvContext, num_chunks: int = 3, best_last: bool = False) -> ContextMaker:
        prompts = PromptTokenizer.of_model(str(DEMO_MODEL))
        assert prompts is not None
        config = IngestionConfig(str(DEMO_MODEL), 40, context)
        return ContextMaker(prompts, config, num_chunks, 2, seed=0, best_last=best_last)

    def example(self) -> Example:
        lease = "# Lease\n\n" + "\n\n".join(
            f"Paragraph {i} of the lease speaks of the {thing} and of nothing else at all."
            for i, thing in enumerate(("mill", "harbour", "orchard", "bridge"))
        )
        return Example(
            "one",
            (ExampleDocument("Lease", lease), ExampleDocument("", "A note about a mayor.")),
            ("What of the orchard?", "And the bridge?", "Who is the mayor?"),
        )

    def test_questions_are_asked_over_the_chunks_that_have_their_words(self) -> None:
        prompts = PromptTokenizer.of_model(str(DEMO_MODEL))
        assert prompts is not None
        first, second = self.maker(KvContext.DOCUMENT).contexts([self.example()])
        assert [len(context.questions) for context in (first, second)] == [2, 1]
        told = [prompts.decode(chunk.token_ids) for chunk in first.chunks]
        assert len(told) == 3
        assert any("orchard" in text for text in told)
        assert any("bridge" in text for text in told)
        assert any("mayor" in prompts.decode(chunk.token_ids) for chunk in second.chunks)

    def test_the_best_chunk_of_the_first_question_may_stand_last(self) -> None:
        prompts = PromptTokenizer.of_model(str(DEMO_MODEL))
        assert prompts is not None
        for context, thing in zip(
            self.maker(KvContext.DOCUMENT, best_last=True).contexts([self.example()]),
            ("orchard", "mayor"),
            strict=True,
        ):
            assert thing in prompts.decode(context.chunks[-1].token_ids)

    def test_chains_and_blocks_are_those_of_ingestion(self) -> None:
        context, _ = self.maker(KvContext.DOCUMENT, 2).contexts([self.example()])
        for chunk in context.chunks:
            header, *in_front = chunk.chain
            place = context.blocks.index(chunk.token_ids)
            assert tuple(in_front) == context.blocks[:place]
            assert header not in context.blocks
        isolated, _ = self.maker(KvContext.NONE, 2).contexts([self.example()])
        assert all(chunk.chain == () for chunk in isolated.chunks)
        assert len(isolated.blocks) > len(isolated.chunks), "the teacher reads what is around them as well"
        headed, _ = self.maker(KvContext.HEADER, 2).contexts([self.example()])
        assert all(len(chunk.chain) == 1 for chunk in headed.chunks)
