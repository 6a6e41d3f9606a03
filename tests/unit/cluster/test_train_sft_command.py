"""`kvquilt train sft`: what it is fed with and in which shares, what comes of it, what it refuses."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from cluster.cli.main import main
from cluster.paths import DEMO_MODEL
from cluster.training.contexts import ContextMaker
from cluster.training.examples import Example, ExampleDocument, invented_examples, invented_with_answers
from cluster.training.labelled import Labelled, LabelledChat, Message, read_labelled
from cluster.training.mix import PAPER_SHARES, MixPart, parse_mix
from cluster.training.samples import SampleMaker
from services.ingestion.config import IngestionConfig
from services.training.sft.samples import SftSample
from shared.chat_template import template_of
from shared.engine import load_model
from shared.engine.model.lora_files import read_adapter
from shared.errors import ConfigError, ContextTooLong, InvalidRequest
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer
from shared.prompt_config import PromptConfig
from tests.chat_templates import FAMILIES, chat_tokenizer

QUICK = [
    *("--model", "demo", "--updates", "2", "--contexts-per-update", "2", "--contexts-per-pass", "2"),
    *("--evaluate-every", "1", "--checkpoint-every", "1", "--kv-context", "none"),
]
QA = {
    "documents": [{"title": "Lease", "text": "Ann signed the lease."}],
    "questions": ["Who?"],
    "answers": ["Ann"],
}
CHAT = [
    Message("user", "Hello"),
    Message("assistant", "Hello!"),
    Message("user", "More"),
    Message("assistant", "No."),
]


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def sft(*args: object) -> Result:
    return CliRunner().invoke(main, ["train", "sft", *map(str, args)], catch_exceptions=False)


def file_of(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


class TestTheCommand:
    def test_makes_a_model_that_is_another_one(self, tmp_path: Path) -> None:
        out = tmp_path / "tuned"
        done = sft(*QUICK, "--invented", 3, "--questions", 4, "--out", out)
        assert done.exit_code == 0, done.output
        assert "update 2/2  loss " in done.output
        assert f"kvquilt up --model {out}" in done.output
        assert "ingest documents again" in done.output
        served, base = load_model(str(out)), load_model(str(DEMO_MODEL))
        assert served.spec.dtype == base.spec.dtype
        assert served.fingerprint != base.fingerprint
        prompts = PromptTokenizer.of_model(str(out))
        assert prompts is not None
        assert prompts.hash == PromptTokenizer.of_model(str(DEMO_MODEL)).hash  # type: ignore[union-attr]
        assert (out / "quilt.yaml").read_bytes() == (DEMO_MODEL / "quilt.yaml").read_bytes()
        weights = (out / "model.safetensors").read_bytes()
        again = sft(*QUICK, "--invented", 3, "--questions", 4, "--out", out)
        assert "goes on at update 2 of 2" in again.output
        assert (out / "model.safetensors").read_bytes() == weights
        with pytest.raises(ConfigError, match="holds a model, into which what was trained is merged"):
            read_adapter(out, "tuned")

    def test_of_a_mix_a_lora_and_its_naive_twin(self, tmp_path: Path) -> None:
        examples = [
            {"documents": [d.text for d in e.documents], "questions": e.questions[:2], "answers": answers[:2]}
            for e, answers in invented_with_answers(1, 4)
        ]
        qa = file_of(tmp_path / "qa.jsonl", *examples)
        plain = file_of(
            tmp_path / "plain.jsonl", *({"question": f"What is {i}?", "answer": f"{i}."} for i in range(4))
        )
        mix = ["--mix", f"qa={qa}", "--mix", f"dialogue=50:{plain}"]
        for out, more in (("lora", ("--rank", 2)), ("naive", ("--rank", 2, "--reuse", "full"))):
            done = sft(*QUICK, *mix, *more, "--questions", 2, "--out", tmp_path / out)
            assert done.exit_code == 0, done.output
            assert "dialogue: 50 % of the samples, 4 there (plain.jsonl)" in done.output
        cards = [(tmp_path / out / "README.md").read_text(encoding="utf-8") for out in ("lora", "naive")]
        assert "a LoRA of rank 2 on all rows, merged" in cards[0]
        assert "placed as `reordered` serves them, computed behind `kv_context: none`" in cards[0]
        assert "the naive twin" in cards[1]
        assert not (tmp_path / "lora" / "adapter_config.json").exists()

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            ((), "--data: name a file, or say --mix or --invented N, one of the three"),
            (("--invented", 3, "--mix", "qa=a"), "one of the three"),
            (("--collection", "handbook"), "--collection: its documents come without answers"),
            (("--invented", 3, "--rank", -2), "rank: must be at least 0"),
            (("--mix", "poems=poems.jsonl"), "--mix: expected KIND=SHARE:FILE"),
            (("--mix", "qa=nowhere.jsonl"), "--mix: there is no file nowhere.jsonl"),
        ],
    )
    def test_tells_what_is_wrong_in_a_line(self, args: tuple[object, ...], told: str, tmp_path: Path) -> None:
        refused = sft(*QUICK, *args, "--out", tmp_path / "tuned")
        assert refused.exit_code == 2
        assert told in " ".join(refused.output.split())

    def test_a_line_without_answers_is_named(self, tmp_path: Path) -> None:
        data = file_of(tmp_path / "data.jsonl", QA, {"documents": ["a"], "questions": ["b"]})
        refused = sft(*QUICK, "--data", data, "--out", tmp_path / "tuned")
        assert refused.exit_code == 2
        assert "data.jsonl, line 2: answers: is missing" in " ".join(refused.output.split())


class TestMixes:
    def test_kinds_have_shares_and_files(self) -> None:
        assert parse_mix(["qa=60:a.jsonl,b.jsonl", "poems=2.5:c.jsonl"]) == [
            MixPart("qa", 60.0, (Path("a.jsonl"), Path("b.jsonl"))),
            MixPart("poems", 2.5, (Path("c.jsonl"),)),
        ]

    def test_kinds_of_the_paper_have_its_shares(self) -> None:
        parts = parse_mix([f"{kind}={kind}.jsonl" for kind in PAPER_SHARES])
        assert [part.share for part in parts] == [50.0, 25.0, 10.0, 10.0, 5.0]

    @pytest.mark.parametrize("name", ["mix.yaml", "mix.json"])
    def test_a_file_says_all_and_its_files_lie_beside_it(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).write_text(
            '{"qa": {"files": ["a.jsonl", "/b.jsonl"]}, "x": {"share": 3, "files": "c"}}'
        )
        assert parse_mix([str(tmp_path / name)]) == [
            MixPart("qa", 50.0, (tmp_path / "a.jsonl", Path("/b.jsonl"))),
            MixPart("x", 3.0, (tmp_path / "c",)),
        ]

    @pytest.mark.parametrize(
        ("parts", "told"),
        [
            (["qa="], "expected KIND=SHARE:FILE"),
            (["=3:a"], "expected KIND=SHARE:FILE"),
            (["qa=much:a"], "qa: share: must be a number above 0, got 'much'"),
            (["qa=-1:a"], "qa: share: must be a number above 0, got '-1'"),
            (["poems=:a"], "poems: share: is missing; only qa, dialogue"),
            (["qa=1:a", "qa=2:b"], "qa: comes twice"),
            (["qa=1:a,,b"], "qa: files: expected names of files"),
            (["nowhere.yaml"], "nowhere.yaml cannot be read"),
        ],
    )
    def test_other_forms_are_refused(self, parts: list[str], told: str) -> None:
        with pytest.raises(ConfigError, match=f"--mix: .*{told}"):
            parse_mix(parts)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "names no kind"),
            ("qa: 50", "qa: expected {share: 50, files"),
            ("qa: {share: 50}", "qa: expected"),
            ("qa: {files: [a], weight: 2}", "qa: expected"),
            ("qa: {files: []}", "qa: files: expected names"),
            ("qa: {share: .nan, files: [a]}", "qa: share: must be a number above 0"),
            ("poems: {files: [a]}", "poems: share: is missing"),
        ],
    )
    def test_other_files_are_refused_by_kind_and_field(self, text: str, told: str, tmp_path: Path) -> None:
        (tmp_path / "mix.yaml").write_text(text)
        with pytest.raises(ConfigError, match=f"mix.yaml: {told}"):
            parse_mix([str(tmp_path / "mix.yaml")])


class TestFiles:
    def test_lines_are_questions_about_documents_or_alone_or_conversations(self, tmp_path: Path) -> None:
        chat = {"messages": [{"role": m.role, "content": m.content} for m in CHAT], "id": 7}
        path = file_of(tmp_path / "data.jsonl", QA, {"question": " Seven? ", "answer": "7"}, chat)
        labelled, alone, conversation = read_labelled(path, "--data")
        assert labelled == Labelled(
            Example(f"{path}, line 1", (ExampleDocument("Lease", "Ann signed the lease."),), ("Who?",)),
            ("Ann",),
        )
        assert alone == Labelled(Example(f"{path}, line 2", (), ("Seven?",)), ("7",))
        assert conversation == LabelledChat(f"{path}, line 3", tuple(CHAT))

    def test_lists_and_packed_files_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "data.json.gz"
        path.write_bytes(gzip.compress(json.dumps([{**QA, "documents": ["a", "b"]}]).encode()))
        (found,) = read_labelled(path, "--data")
        assert isinstance(found, Labelled)
        assert [document.text for document in found.example.documents] == ["a", "b"]

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("{", ": is no JSON"),
            ("[]", ": is no object"),
            ('{"documents": ["a"], "questions": ["b"]}', ": answers: is missing"),
            ('{"documents": ["a"], "question": "b"}', ": answers: is missing"),
            ('{"answer": "b"}', ": questions: is missing"),
            ('{"questions": ["a", "b"], "answers": ["c"]}', ": answers: there must be one for each"),
            ('{"questions": ["a", " "], "answers": ["c", "d"]}', r": questions\[1\]: must be text"),
            ('{"question": "a", "answer": 3}', ": answer: must be text, got 3"),
            ('{"documents": "a", "question": "a", "answer": "b"}', ": documents: must be a list of"),
            ('{"documents": [{}], "question": "a", "answer": "b"}', r", documents\[0\]: text: is missing"),
            (
                '{"documents": [{"text": "a", "title": 3}], "question": "a", "answer": "b"}',
                r", documents\[0\]: title: must be text",
            ),
            (
                '{"messages": [{"role": "bot", "content": "a"}]}',
                r", messages\[0\]: role: must be one of system, user, assistant",
            ),
            ('{"messages": [{"role": "user"}]}', r", messages\[0\]: content: is missing"),
            ('{"messages": [{"role": "user", "content": "a"}]}', ": messages: must hold a message of the"),
        ],
    )
    def test_a_line_of_another_form_is_named_with_its_field(
        self, line: str, told: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "data.jsonl"
        path.write_text(f"{json.dumps(QA)}\n{line}\n", encoding="utf-8")
        with pytest.raises(InvalidRequest, match=f"--mix: .*data.jsonl, line 2{told}"):
            list(read_labelled(path, "--mix"))


class TestInvented:
    def test_answers_are_those_of_the_questions(self) -> None:
        pairs = list(invented_with_answers(3, 2))
        assert [example for example, _ in pairs] == list(invented_examples(3, 2))
        for example, answers in pairs:
            assert len(example.questions) == len(answers) > 1
            texts = " ".join(document.text for document in example.documents)
            assert any(answer.rstrip(".").split()[-1] in texts for answer in answers)


class TestSamples:
    def maker(
        self, prompts: PromptTokenizer | None = None, num_positions: int = 2048, chunks: int = 3
    ) -> SampleMaker:
        prompts = prompts or PromptTokenizer.of_model(str(DEMO_MODEL))
        assert prompts is not None
        config = IngestionConfig(str(DEMO_MODEL), 40, KvContext.NONE)
        contexts = ContextMaker(prompts, config, chunks, 2, seed=0)
        return SampleMaker(prompts, contexts, PromptConfig(), ReuseMode.REORDERED, num_positions)

    def chat(self, family: str, *conversation: Message) -> tuple[SftSample, PromptTokenizer]:
        tokenizer = chat_tokenizer(family)
        prompts = PromptTokenizer(tokenizer, template_of(tokenizer, None, PromptConfig()))
        (sample,) = self.maker(prompts).samples([LabelledChat("one", conversation or tuple(CHAT))])
        return sample, prompts

    def labelled(self) -> Labelled:
        things = ("mill", "harbour", "orchard", "bridge", "tower")
        text = "\n\n".join(
            f"Paragraph {i} of the lease speaks of the {thing}, and the price of it is {i}{i} crowns."
            for i, thing in enumerate(things)
        )
        example = Example(
            "one",
            (ExampleDocument("Lease", text),),
            ("What is the fifth of them?", "What costs 2?", "And last?"),
        )
        return Labelled(example, ("tower", "orchard", "mill"))

    def test_questions_stand_behind_the_chunks_that_say_their_answers(self) -> None:
        prompts = PromptTokenizer.of_model(str(DEMO_MODEL))
        assert prompts is not None
        first, second = self.maker(chunks=2).samples([self.labelled()])
        assert [len(sample.branches) for sample in (first, second)] == [2, 1]
        told = "".join(prompts.decode(chunk.token_ids) for chunk in first.chunks)
        assert "tower" in told
        assert "orchard" in told
        assert first.prefix_ids == prompts.prefix_ids
        for said, answer in zip(first.branches, (" tower", " orchard"), strict=True):
            ((begin, end),) = said.learned
            assert prompts.decode(said.token_ids[begin:end]) == answer
            assert said.token_ids[end - 1] == prompts.tokenizer.eos_token_id
            assert end == len(said.token_ids)

    def test_without_documents_and_chat_template_the_question_stands_alone(self) -> None:
        prompts = PromptTokenizer.of_model(str(DEMO_MODEL))
        assert prompts is not None
        (sample,) = self.maker().samples([Labelled(Example("one", (), ("Why?",)), ("Because.",))])
        assert (sample.prefix_ids, sample.chunks) == ((), ())
        assert prompts.decode(sample.branches[0].token_ids) == "Question: Why?\nAnswer: Because."

    @pytest.mark.parametrize("family", sorted(FAMILIES))
    def test_conversations_are_learned_as_they_would_be_said(self, family: str) -> None:
        """Every message of the assistant with its end mark, behind what the template says in front of it."""
        sample, prompts = self.chat(family)
        assert (sample.prefix_ids, sample.chunks) == ((), ())
        learned = [
            (said.token_ids[:begin], said.token_ids[begin:end])
            for said in sample.branches
            for begin, end in said.learned
        ]
        assert len(learned) == 2
        for (before, answer), message in zip(learned, (CHAT[1], CHAT[3]), strict=True):
            assert prompts.tokenizer.decode(answer, skip_special_tokens=True).strip() == message.content
            assert answer[-1] in {*prompts.end_ids, prompts.tokenizer.eos_token_id}
            assert "Hello" in prompts.tokenizer.decode(before)
        before, _ = learned[1]
        assert "More" in prompts.tokenizer.decode(before)
        assert "Hello!" in prompts.tokenizer.decode(before)

    def test_a_chat_model_learns_a_lone_answer_as_a_conversation(self) -> None:
        family = sorted(FAMILIES)[0]
        tokenizer = chat_tokenizer(family)
        prompts = PromptTokenizer(tokenizer, template_of(tokenizer, None, PromptConfig()))
        asked = Labelled(Example("one", (), ("Hello",)), ("Hello!",))
        (alone,) = self.maker(prompts).samples([asked])
        assert alone.branches == self.chat(family, *CHAT[:2])[0].branches

    def test_messages_need_a_chat_template(self) -> None:
        with pytest.raises(InvalidRequest, match=r"^one: messages: .* no chat template"):
            list(self.maker().samples([LabelledChat("one", tuple(CHAT))]))

    def test_what_does_not_fit_is_named(self) -> None:
        with pytest.raises(ContextTooLong, match=r"^one: takes .* positions, the model has 40"):
            list(self.maker(num_positions=40).samples([self.labelled()]))
