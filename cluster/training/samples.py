"""Makes samples of labelled examples: documents are cut, chained and retrieved, questions put as they are served;
what has no documents stands alone, in the tokenizer's chat template if it has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from cluster.training.contexts import ContextMaker
from cluster.training.labelled import Conversation, Labelled, Message
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
        _, behind = prompts.template.question.split("{question}")
        begun = behind.endswith((" ", "\n")) or behind.endswith(tuple(tokenizer.all_special_tokens))
        self._gap = "" if begun else " "

    def samples(self, examples: Iterable[Labelled | Conversation]) -> Iterator[SftSample]:
        """
        Raises:
            InvalidRequest: an example cannot be put as a prompt; names where it is from.
            ContextTooLong: a sample takes more positions than the model has.
        """
        for one in examples:
            made = self._of_conversation(one) if isinstance(one, Conversation) else self._of_labelled(one)
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
            asked = Conversation(name, (Message("user", question), Message("assistant", answer)))
            (sample,) = self._of_conversation(asked)
            return sample
        ids = self._prompts.encode_prefix("") + self._prompts.encode_question(question)
        return SftSample(name, (), (), (Said.answered(ids, self._answer(answer)),))

    def _answer(self, text: str) -> Ids:
        return (*self._prompts.encode(self._gap + text), self._end)

    def _of_conversation(self, conversation: Conversation) -> Iterator[SftSample]:
        """Every message of the assistant is learned up to its end mark. Special tokens that are written in a
        message are tokens. Where the template alters what it said before, as it does with earlier thoughts, only
        what it does not alter is learned."""
        messages = [asdict(message) for message in conversation.messages]
        whole = self._rendered(conversation.name, messages)
        ids: Ids = ()
        learned: list[tuple[int, int]] = []
        done = 0
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or not number:
                continue
            before = self._rendered(conversation.name, messages[:number], asks=True)
            after = self._rendered(conversation.name, messages[: number + 1])
            if whole.startswith(before) and whole.startswith(after) and after.startswith(before):
                ids += self._encode(whole[done : len(before)])
                said = self._encode(whole[len(before) : len(after)])
                num_said = next((i + 1 for i, token in enumerate(said) if token in self._ends), len(said))
                learned.append((len(ids), len(ids) + num_said))
                ids += said
                done = len(after)
        if not learned:
            raise InvalidRequest(
                f"{conversation.name}: messages: the chat template alters what the assistant says; write "
                "question and answer"
            )
        yield SftSample(conversation.name, (), (), (Said(ids, tuple(learned)),))

    def _encode(self, text: str) -> Ids:
        return tuple(self._prompts.tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def _rendered(self, name: str, messages: list[dict[str, str]], asks: bool = False) -> str:
        if self._chat is None:
            raise InvalidRequest(
                f"{name}: messages: the model's tokenizer has no chat template; write question and answer"
            )
        try:
            return self._chat.render(messages, add_generation_prompt=asks)
        except Exception as error:  # somebody else's program
            raise InvalidRequest(f"{name}: messages: the chat template refuses them: {error}") from error
