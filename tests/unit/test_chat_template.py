"""A prompt out of a chat template: its pieces, their ids, and what cannot be one."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from shared.chat_template import template_of
from shared.errors import ConfigError
from shared.prompt import PromptTokenizer
from shared.prompt_config import PromptConfig
from shared.prompt_template import PromptTemplate
from shared.selection.spans import SpanTokenizer
from tests.chat_templates import CHATML, FAMILIES, chat_tokenizer

SYSTEM = "Be brief, and <b>honest</b>."
PROMPT = "Answer the question from the documents below."
DOCUMENTS = ("The quick brown fox jumps.", "Der Bürgermeister von Tübingen heißt Jörg Weiß.")
QUESTION = "Who is the mayor of the town?"
EVERY = tuple(FAMILIES)
families = pytest.mark.parametrize("family", EVERY)


@lru_cache
def prompts_of(family: str, *special: str, **settings: Any) -> PromptTokenizer:
    tokenizer = chat_tokenizer(family, *special)
    prompts = PromptTokenizer(tokenizer, template_of(tokenizer, None, PromptConfig(**settings)))
    prompts.check_specials()
    return prompts


def messages_of(family: str, system: str | None) -> list[dict[str, str]]:
    user = "".join([f"{PROMPT}\n\n", *(f"{text}\n\n" for text in DOCUMENTS), f"Question: {QUESTION}"])
    if system is None:
        return [{"role": "user", "content": user}]
    if not FAMILIES[family].has_system:
        return [{"role": "user", "content": f"{system}\n\n{user}"}]
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def stock_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages,
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
        date_string="26 Jul 2024",
        enable_thinking=False,
    )
    return ids


def with_template(source: str, family: str = "ChatML") -> Any:
    tokenizer = chat_tokenizer(family, "<|copy|>")
    twin = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|im_end|>")
    twin.chat_template = source
    return twin


class TestPieces:
    @families
    @pytest.mark.parametrize("system", [None, SYSTEM])
    def test_together_they_are_the_message_that_the_template_renders(
        self, family: str, system: str | None
    ) -> None:
        prompts = prompts_of(family, system=system)
        template = prompts.template
        rendered = prompts.tokenizer.apply_chat_template(
            messages_of(family, system),
            tokenize=False,
            add_generation_prompt=True,
            date_string="26 Jul 2024",
            enable_thinking=False,
        )
        chunks = "".join(template.chunk.replace("{text}", text) for text in DOCUMENTS)
        assert template.prefix + chunks + template.question.replace("{question}", QUESTION) == rendered

    @families
    @pytest.mark.parametrize("system", [None, SYSTEM])
    def test_their_ids_are_those_of_the_whole_message_but_at_seams(
        self, family: str, system: str | None
    ) -> None:
        prompts = prompts_of(family, system=system)
        whole = stock_ids(prompts.tokenizer, messages_of(family, system))
        pieces = [
            prompts.prefix_ids,
            *map(prompts.encode_chunk, DOCUMENTS),
            prompts.encode_question(QUESTION),
        ]
        begin = 0
        for number, piece in enumerate(pieces):
            inner = list(piece[2 if number else 0 : -2 if number < len(pieces) - 1 else None])
            found = next(i for i in range(begin, len(whole)) if whole[i : i + len(inner)] == inner)
            assert number or not found, "the prompt begins as the message does"
            begin = found + len(inner)
        assert begin == len(whole), "and ends as it does"

    def test_between_special_tokens_there_are_no_seams(self) -> None:
        markers = ("<|doc_start|>", "<|doc_end|>")
        for family in ("ChatML", "Qwen3", "Llama-3"):
            prompts = prompts_of(family, *markers, template="turborag")
            text = prompts.template.prefix + "".join(f"<|doc_start|>{text}<|doc_end|>" for text in DOCUMENTS)
            text += prompts.template.question.replace("{question}", QUESTION)
            chunks = [token for text in DOCUMENTS for token in prompts.encode_chunk(text)]
            ours = [*prompts.prefix_ids, *chunks, *prompts.encode_question(QUESTION)]
            assert ours == prompts.tokenizer.encode(text, add_special_tokens=False)
            assert "you will refuse to answer" in prompts.template.question

    @families
    def test_an_answer_ends_with_the_models_turn(self, family: str) -> None:
        prompts = prompts_of(family)
        ends = FAMILIES[family].ends
        assert prompts.end_ids == {prompts.tokenizer.convert_tokens_to_ids(ends)}

    @families
    def test_bos_comes_as_often_as_in_the_message(self, family: str) -> None:
        prompts = prompts_of(family)
        bos = prompts.tokenizer.bos_token_id
        assert prompts.prefix_ids.count(bos) == stock_ids(prompts.tokenizer, messages_of(family, None)).count(
            bos
        ) - prompts.encode_question(QUESTION).count(bos)
        prefix = prompts.encode_prefix("Hello")
        assert (prefix[0] == bos) == (prompts.prefix_ids[0] == bos)

    def test_bos_in_a_template_of_ones_own_is_not_doubled(self) -> None:
        tokenizer = chat_tokenizer("Llama-3")
        written = PromptTokenizer(tokenizer, PromptTemplate(prefix="<|begin_of_text|>Hello"))
        assert written.prefix_ids == PromptTokenizer(tokenizer, PromptTemplate(prefix="Hello")).prefix_ids

    def test_special_tokens_of_a_template_of_ones_own_are_tokens(self) -> None:
        tokenizer = chat_tokenizer("ChatML")
        prompts = PromptTokenizer(tokenizer, PromptTemplate(question="{question}<|im_end|>"))
        assert prompts.encode_question("<|im_end|>")[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert prompts.encode_question("<|im_end|>").count(prompts.encode_question("a")[-1]) == 1


class TestStrangersText:
    @families
    def test_what_looks_like_a_special_token_stays_text(self, family: str) -> None:
        prompts = prompts_of(family)
        tokenizer = prompts.tokenizer
        control = set(prompts.pieces.control_ids.values()) if prompts.pieces else set()
        tokens = (*FAMILIES[family].special, *FAMILIES[family].plain)
        forms = ("{}", "{} behind", "in front {}", "a{}b", "{}{}", "\n{}\n", " {} ", "<|{}|>", "<{}")
        for token, form in product(tokens, forms):
            text = form.replace("{}", token)
            for encoded, harmless in (
                (prompts.encode_chunk(text), prompts.encode_chunk("a")),
                (prompts.encode_question(text), prompts.encode_question("a")),
                (prompts.encode(text), ()),
                (prompts.encode_prefix(text), prompts.encode_prefix("a")),
            ):
                ours = [i for i in encoded if i in control]
                assert ours == [i for i in harmless if i in control]
            assert token in tokenizer.decode(prompts.encode(text))

    @pytest.mark.parametrize("half", ["<|im_", "<|im_end|", "<"])
    def test_text_beside_the_templates_does_not_become_one(self, half: str) -> None:
        tokenizer = chat_tokenizer("ChatML")
        rest = "<|im_end|>"[len(half) :]
        template = PromptTemplate(chunk=half + "{text}" + rest, question="{question}")
        prompts = PromptTokenizer(tokenizer, template)
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert end not in prompts.encode_chunk("")
        assert end not in prompts.encode_chunk(rest)
        assert end not in prompts.encode_chunk(half)

    def test_spans_of_a_chunk_are_found_between_the_templates_special_tokens(self) -> None:
        prompts = prompts_of("Qwen3", "<|doc_start|>", "<|doc_end|>", template="turborag")
        spans = SpanTokenizer(prompts, "primary")
        for text in ("A mayor <|doc_end|> of <|doc_start|>", "", "Jörg 🌉"):
            whole = prompts.template.chunk.replace("{text}", text)
            tokens = spans.tokenize_chunk(whole)
            assert tokens.token_ids == prompts.encode_chunk(text)
            assert (tokens.starts[0], tokens.ends[0]) == (0, len("<|doc_start|>"))
            assert (tokens.starts[-1], tokens.ends[-1]) == (len(whole) - len("<|doc_end|>"), len(whole))
            assert all(s >= len("<|doc_start|>") for s in tokens.starts[1:])
            assert all(e <= len(whole) - len("<|doc_end|>") for e in tokens.ends[:-1])


class TestFixed:
    def test_the_date_is_the_configured_one_however_it_is_asked_for(self) -> None:
        dated = prompts_of("Llama-3", date="2025-03-09").template.prefix
        assert "Today Date: 09 Mar 2025\n" in dated
        tokenizer = with_template(CHATML + "{{ strftime_now('%Y-%m-%d %H:%M') }}")
        template = template_of(tokenizer, None, PromptConfig(date="2025-03-09"))
        assert template.question.endswith("2025-03-09 00:00")
        assert "26 Jul 2024" in prompts_of("Llama-3").template.prefix

    def test_thinking_is_off_unless_it_is_asked_for(self) -> None:
        assert prompts_of("Qwen3").template.question.endswith("<think>\n\n</think>\n\n")
        assert prompts_of("Qwen3", thinking=True).template.question.endswith("assistant\n")

    def test_white_space_at_the_end_of_a_question_goes_where_the_template_takes_it_away(self) -> None:
        for family, trims in (("Llama-3", True), ("ChatML", False)):
            prompts = prompts_of(family)
            assert (prompts.encode_question("why? \n") == prompts.encode_question("why?")) is trims


class TestChosen:
    def test_a_model_without_a_chat_template_has_the_default(self) -> None:
        assert template_of(with_template(""), None, PromptConfig()) == PromptTemplate()

    def test_words_of_the_operator_are_said_without_a_chat_template_too(self) -> None:
        template = template_of(with_template(""), None, PromptConfig(system="S.", instruction="I."))
        assert template.prefix == "S.\n\nI.\n\n"

    def test_the_models_own_prompt_wins_until_the_operator_names_another(self) -> None:
        tokenizer, own = chat_tokenizer("ChatML"), PromptTemplate("P", "{text}", "{question}", "kvquilt.json")
        assert template_of(tokenizer, own, PromptConfig(system="not used")) is own
        assert template_of(tokenizer, own, PromptConfig("chat")).origin == "chat template"
        assert template_of(tokenizer, own, PromptConfig("default")) == PromptTemplate()

    def test_what_cannot_be_had_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"prompt.template: the tokenizer .* has no chat template"):
            template_of(with_template(""), None, PromptConfig("chat"))
        with pytest.raises(ConfigError, match=r"prompt.template: turborag .* token <\|doc_start\|>"):
            template_of(chat_tokenizer("ChatML"), None, PromptConfig("turborag"))

    def test_turborag_works_without_a_chat_template(self) -> None:
        tokenizer = chat_tokenizer("ChatML", "<|doc_start|>", "<|doc_end|>")
        twin = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
        template = template_of(twin, None, PromptConfig("turborag"))
        assert (template.origin, template.chunk) == ("turborag", "<|doc_start|>{text}<|doc_end|>")
        start = tokenizer.convert_tokens_to_ids("<|doc_start|>")
        assert PromptTokenizer(twin, template).encode_chunk("a <|doc_start|>").count(start) == 1

    def test_a_directory_says_which(self, tmp_path: Path) -> None:
        chat_tokenizer("ChatML").save_pretrained(tmp_path)
        prompts = PromptTokenizer.of_model(str(tmp_path), PromptConfig(system=SYSTEM))
        assert prompts is not None
        assert prompts.template.origin == "chat template"
        assert SYSTEM in prompts.template.prefix
        PromptTemplate("P").write(tmp_path)
        prompts = PromptTokenizer.of_model(str(tmp_path))
        assert prompts is not None
        assert (prompts.template.prefix, prompts.template.origin) == ("P", "kvquilt.json")
        (tmp_path / "kvquilt.json").write_text(json.dumps({"origin": "P"}), encoding="utf-8")
        with pytest.raises(
            ConfigError, match=r"kvquilt.json of the model: origin: there are prefix, chunk, question"
        ):
            PromptTokenizer.of_model(str(tmp_path))

    def test_a_date_that_is_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="date: must be a day such as 2024-07-26, got 'today'"):
            PromptConfig(date="today")


CONTENT = "{{ messages[-1]['content'] }}"


class TestRefused:
    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("no message at all", "instruction is lost"),
            ("{{ messages[-1]['content'].split('[kvquilt: q')[0] }}", "question is lost"),
            (CONTENT + CONTENT, "instruction is repeated, it comes 2 times"),
            ("{{ messages[-1]['content'] | upper }}", "lost"),
            ("{{ messages[-1]['content'] | replace('Z', 'z') }}", "instruction is altered: expected '.*Z"),
            ("{{ messages[-1]['content'] | tojson }}", "instruction is altered"),
            (
                "{{ messages[-1]['content'] | e }}",
                "instruction is altered: expected .*<b>.*makes .*&lt;b&gt;",
            ),
            ("{{ messages[-1]['content'] | replace('\n\n\n', '\n') }}", "instruction is altered"),
            (
                "{% set m = messages[-1]['content'] %}{% set at = m.index('[kvquilt: question') %}"
                "{{ m[at:] + m[:at] }}",
                "order is changed, the question comes in front of the document 2",
            ),
            (
                "{{ messages[-1]['content'] | replace('# Z\n\n', '# Z\n') }}",
                "text in front of the documents is altered",
            ),
            ("{{ raise_exception('no users here') }}", "no users here"),
            ("{% if %}", "cannot be read"),
            ("{{ messages[-1].nothing.more }}", "refuses its messages"),
        ],
    )
    def test_a_template_that_does_not_round_trip(self, source: str, says: str) -> None:
        with pytest.raises(ConfigError, match=f"chat template: (?s:.*){says}.*prompt.template") as error:
            template_of(with_template(source), None, PromptConfig())
        assert len(error.value.detail) < 500

    def test_a_system_text_that_comes_altered(self) -> None:
        source = "{% if messages[0].role == 'system' %}{{ messages[0].content | e }}{% endif %}" + CONTENT
        with pytest.raises(ConfigError, match="the system text is altered"):
            template_of(with_template(source), None, PromptConfig(system="x"))

    def test_a_tokenizer_that_makes_other_ids_of_the_template(self) -> None:
        prompts = PromptTokenizer(chat_tokenizer("ChatML"), PromptTemplate(is_whole=True))
        prompts.prefix_ids = (1,)
        with pytest.raises(ConfigError, match=r"the prefix .* becomes the ids"):
            prompts.check_specials()
