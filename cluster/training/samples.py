"""Makes samples of labelled examples: documents are cut, chained and retrieved, questions put as they are
served; what has no documents stands alone, in the tokenizer's chat template if it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from cluster.training.contexts import ContextMaker
from cluster.training.labelled import Labelled, LabelledChat, Message
from services.training.sft.samples import Said, SftSample
from services.training.twin_request import Ids
from shared.chat_template import Chat
from shared.errors import ConfigError, ContextTooLong, InvalidRequest
from shared.generation.modes import ReuseMode
from shared.prompt import PromptTokenizer
from shared.prompt_config import PromptConfig


class SampleMaker:
    """``num_positions``: of the model; ``reuse``: what samples are placed by.

    Raises:
        ConfigError: the model has no token that ends an answer.
    """

    def __init__(
        self,
        prompts: PromptTokenizer,
        contexts: ContextMaker,
        config: PromptConfig,
        reuse: ReuseMode,
        num_positions: int,
    ) -> None:
        tokenizer = prompts.tokenizer
        self._prompts, self._contexts = prompts, contexts
        self._reuse, self._num_positions = reuse, num_positions
        self._ends = {*prompts.end_ids}
        if tokenizer.eos_token_id is not None:
            self._ends.add(int(tokenizer.eos_token_id))
        if not self._ends:
            raise ConfigError("model: its tokenizer has no end mark (eos_token), so answers would not end")
        self._end = next(iter(prompts.end_ids), tokenizer.eos_token_id)
        self._chat = Chat(tokenizer, config) if getattr(tokenizer, "chat_template", None) else None
        _, self._asked = prompts.template.question.split("{question}")

    def samples(self, examples: Iterable[Labelled | LabelledChat]) -> Iterator[SftSample]:
        """
        Raises:
            InvalidRequest: an example cannot be put as a prompt; names where it is from.
            ContextTooLong: a sample takes more positions than the model has.
        """
        for one in examples:
            made = self._of_conversation(one) if isinstance(one, LabelledChat) else self._of_labelled(one)
            for sample in made:
                if (num_positions := sample.num_positions(self._reuse)) > self._num_positions:
                    raise ContextTooLong(
                        f"{sample.name}: takes {num_positions} positions, the model has "
                        f"{self._num_positions}; give fewer or shorter chunks, or leave it out"
                    )
                yield sample

    def _of_labelled(self, labelled: Labelled) -> Iterator[SftSample]:
        example, prompts = labelled.example, self._prompts
        if not example.documents:
            for question, answer in zip(example.questions, labelled.answers, strict=True):
                yield self._alone(example.name, question, answer)
            return
        for found in self._contexts.retrieved(example, labelled.answers):
            pairs = zip(example.questions[found.asked], labelled.answers[found.asked], strict=True)
            branches = tuple(Said.answered(prompts.encode_question(q), self._answer(a)) for q, a in pairs)
            yield SftSample(example.name, prompts.prefix_ids, found.chunks, branches)

    def _alone(self, name: str, question: str, answer: str) -> SftSample:
        if self._chat is not None:
            asked = LabelledChat(name, (Message("user", question), Message("assistant", answer)))
            (sample,) = self._of_conversation(asked)
            return sample
        ids = self._prompts.encode_prefix("") + self._prompts.encode_question(question)
        return SftSample(name, (), (), (Said.answered(ids, self._answer(answer)),))

    def _answer(self, text: str) -> Ids:
        """Behind a question, up to its end mark."""
        return self._said(self._asked, text)

    def _said(self, behind: str, text: str) -> Ids:
        """``behind``: the text in front of it."""
        special = tuple(self._prompts.tokenizer.all_special_tokens)
        gap = "" if behind.endswith((" ", "\n", *special)) else " "
        return (*self._prompts.encode(gap + text), self._end)

    def _of_conversation(self, conversation: LabelledChat) -> Iterator[SftSample]:
        """Every message of the assistant is learned up to its end mark. Special tokens that are written in a
        message are tokens."""
        told = _Told(
            conversation.name, [asdict(message) for message in conversation.messages], self._rendered
        )
        branches = self._as_one(told) or tuple(self._one_by_one(told))
        yield SftSample(conversation.name, (), (), branches)

    def _as_one(self, told: _Told) -> tuple[Said, ...]:
        """Nothing, where the template says otherwise later what it said before, as some do with thoughts."""
        whole, done = told.up_to(len(told.messages)), 0
        ids: Ids = ()
        learned: list[tuple[int, int]] = []
        for number in told.assistants():
            before, after = told.asking(number), told.up_to(number + 1)
            if not (whole.startswith(after) and after.startswith(before)):
                return ()
            ids += self._encode(whole[done : len(before)])
            said = self._encode(after[len(before) :])
            num_said = next((i + 1 for i, token in enumerate(said) if token in self._ends), len(said))
            learned.append((len(ids), len(ids) + num_said))
            ids, done = ids + said, len(after)
        return (Said(ids, tuple(learned)),)

    def _one_by_one(self, told: _Told) -> Iterator[Said]:
        """Each behind what the template says up to it."""
        for number in told.assistants():
            before = told.asking(number)
            yield Said.answered(self._encode(before), self._said(before, told.messages[number]["content"]))

    def _encode(self, text: str) -> Ids:
        return tuple(self._prompts.tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def _rendered(self, name: str, messages: list[dict[str, str]], asks: bool) -> str:
        if self._chat is None:
            raise InvalidRequest(
                f"{name}: messages: the model's tokenizer has no chat template; write question and answer"
            )
        try:
            return self._chat.render(messages, add_generation_prompt=asks)
        except Exception as error:  # somebody else's program
            raise InvalidRequest(f"{name}: messages: the chat template refuses them: {error}") from error


@dataclass(frozen=True, slots=True)
class _Told:
    """A conversation as the chat template renders it."""

    name: str
    messages: list[dict[str, str]]
    rendered: Callable[[str, list[dict[str, str]], bool], str]

    def assistants(self) -> Iterator[int]:
        """Numbers of the assistant's messages."""
        return (i for i, message in enumerate(self.messages) if i and message["role"] == "assistant")

    def asking(self, number: int) -> str:
        """Everything in front of a message of the assistant."""
        return self.rendered(self.name, self.messages[:number], True)

    def up_to(self, number: int) -> str:
        return self.rendered(self.name, self.messages[:number], False)
