"""Makes chunks of a source, by parser, chunker and tokenizer, and the hash that tells whether anything of
this has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from services.ingestion.chunker import CHUNKER_VERSION, Chunker, TextChunk
from services.ingestion.config import DEFAULT_CONTEXT_TOKENS, LEAST_CHUNK_TOKENS, IngestionConfig
from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.parse import PARSERS_VERSION, depends_on_ocr, media_type_of, parse
from services.ingestion.formats.reading import ParserSettings
from shared.documents import SourceDocument
from shared.errors import ConfigError, ModelMismatch
from shared.generation.described import ModelDescription, text_hash
from shared.identity import digest
from shared.kv_types import KvContext, Manifest
from shared.prompt import num_positions
from shared.prompt_template import PromptTemplate
from shared.readers import EVERYBODY, Readers, SectionReaders

_RECUT = "recut:"  # in front of the settings by which a stored text was cut
_INCOMPLETE = "incomplete"
_DEFAULT = ParserSettings()
Parse = Callable[[SourceDocument, ParserSettings, Callable[[], None]], ParsedDocument]
"""``formats.parse.parse``, here or in a process of its own."""
_CHARS_PER_TOKEN = 2  # of tables, which are mostly numbers and signs


class Tokenizer(Protocol):
    """``shared.prompt.PromptTokenizer``, or a fake."""

    template: PromptTemplate
    prefix_ids: tuple[int, ...]

    @property
    def hash(self) -> str: ...

    def encode_chunk(self, text: str) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Draft:
    """A document that is cut and waits to be stored. ``warnings``: what of it was not read; the others as in
    a ``Manifest``."""

    document_id: str
    title: str
    source_hash: str
    metadata: dict[str, str]
    chunks: tuple[TextChunk, ...]
    warnings: tuple[str, ...] = ()
    kv_context: str = ""
    readers: Readers = EVERYBODY
    sections: tuple[SectionReaders, ...] = ()


class Recipe:
    """``source_hash`` = hash of the source, a dash, hash of these settings, a dot, hash of how text becomes
    ids. Parsing is for several threads, the rest is not: tokenizers are not."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chunk_tokens: int,
        parsers: ParserSettings = _DEFAULT,
        context: KvContext = KvContext.NONE,
        context_tokens: int = 0,
        parse: Parse = parse,
    ) -> None:
        self._parse = parse
        self._parsers = replace(parsers, table_chars=chunk_tokens * _CHARS_PER_TOKEN)
        self._tokenizer = tokenizer
        self.kv_context = "" if context is KvContext.NONE else context.value  # as in a manifest
        self._chunker = Chunker(tokenizer, chunk_tokens, context, context_tokens)
        template = tokenizer.template
        settings = [PARSERS_VERSION, CHUNKER_VERSION, chunk_tokens, tokenizer.hash, template.chunk]
        if context is not KvContext.NONE:
            settings += [context.value, context_tokens]
        self._settings_hash = digest(json.dumps(settings).encode())
        self._text_hash = text_hash(tokenizer.hash, template.chunk)

    def source_hash(self, source: SourceDocument) -> str:
        """
        Raises:
            UnreadableDocument: the format is not known.
        """
        media_type, charset = media_type_of(source)
        described: list[object] = [(media_type, charset), sorted(source.metadata.items())]
        if self._parsers.ocr_name and depends_on_ocr(media_type):
            described.append(self._parsers.ocr_name)
        of_source = digest(json.dumps(described).encode(), source.content)
        return f"{of_source}-{self._settings_hash}.{self._text_hash}"

    def is_of(self, stored: Manifest, source: SourceDocument) -> bool:
        """Whether ``stored`` was cut of this source by these settings. Raises as ``source_hash``."""
        return stored.source_hash.split(".")[0] == self.source_hash(source).split(".")[0]

    def parse(self, source: SourceDocument, check: Callable[[], None]) -> ParsedDocument:
        """``check`` is called now and then, and raises when nobody waits any more.

        Raises:
            UnreadableDocument: says what is wrong with the document.
        """
        return self._parse(source, self._parsers, check)

    def cut(self, source: SourceDocument, parsed: ParsedDocument) -> Draft:
        """The hash of a document that a tool failed on is not that of its source, so that it counts as
        changed when it comes again.

        Raises:
            UnreadableDocument: it cannot be cut.
            InvalidRequest: it has no such section.
        """
        source_hash = self.source_hash(source)
        if parsed.incomplete:
            source_hash = f"{source_hash.rpartition('-')[0]}-{_INCOMPLETE}.{self._text_hash}"
        return Draft(
            source.document_id,
            parsed.title,
            source_hash,
            source.metadata,
            tuple(self._chunker.split(parsed, source.sections)),
            parsed.warnings,
            self.kv_context,
            source.readers,
            source.sections,
        )

    def recut(self, stored: Manifest) -> Draft:
        """A stored document for the model served now, without its source.

        Under another tokenizer or other settings the ids are new, and the hash differs from that of a fresh
        cut: when the source itself comes again, it counts as changed.
        """
        chunks = tuple(
            TextChunk(
                c.text,
                c.token_ids,
                c.char_start,
                c.char_end,
                c.heading,
                c.header_ids if c.header_ids or not c.parent_id else None,
            )
            for c in stored.chunks
        )
        source, _, settings = stored.source_hash.split(".")[0].rpartition("-")
        if settings != self._settings_hash:
            chunks = tuple(self._chunker.recut(stored.title, chunks, stored.sections))
            settings = _RECUT + self._settings_hash
        source_hash = f"{source}-{settings}.{self._text_hash}"
        return Draft(
            stored.document_id,
            stored.title,
            source_hash,
            stored.metadata,
            chunks,
            kv_context=self.kv_context,
            readers=stored.readers,
            sections=stored.sections,
        )

    def is_current(self, stored: Manifest, model: ModelDescription) -> bool:
        """Whether the document is cut, and its KV computed, as it would be now."""
        settings = stored.source_hash.split(".")[0].rpartition("-")[2].removeprefix(_RECUT)
        cut_alike = settings == self._settings_hash and stored.kv_context == self.kv_context
        return cut_alike and not stored.made_for.stored_apart_from(model.made_for)

    def check_model(self, model: ModelDescription) -> None:
        """
        Raises:
            ModelMismatch: the generator serves a model with another tokenizer or template than this service
            was given.
        """
        ours = self._tokenizer
        for what, same in (
            ("tokenizer", ours.hash == model.tokenizer_hash),
            ("prompt prefix", ours.prefix_ids == model.prefix_ids),
            ("chunk template", ours.template.chunk == model.chunk_template),
        ):
            if not same:
                raise ModelMismatch(
                    f"the {what} of the generator's model (prompt: {model.prompt or 'unknown'}) is not "
                    "that of the model ingestion was configured with "
                    f"(prompt: {ours.template.origin}); "
                    "configure both with the same model and the same prompt section"
                )


def context_tokens(config: IngestionConfig, prefix_len: int) -> int:
    """Most ids in front of a chunk behind a prefix of so many.

    Raises:
        ConfigError: more than the model's positions leave, or the chunk itself is, or the prefix.
    """
    positions = num_positions(config.model)
    room = positions - prefix_len - config.chunk_tokens
    if positions - prefix_len < LEAST_CHUNK_TOKENS:
        raise ConfigError(
            f"prompt: its prefix of {prefix_len} tokens leaves no chunk any of the model's {positions} "
            "positions; shorten prompt.system and prompt.instruction"
        )
    if room < 0:
        raise ConfigError(
            f"ingestion.chunk_tokens: a chunk of {config.chunk_tokens} tokens behind the prompt's prefix of "
            f"{prefix_len} exceeds the model's {positions} positions; set it to {positions - prefix_len} at "
            "most"
        )
    if config.kv_context is KvContext.NONE:
        return 0
    if config.kv_context_tokens > room:
        raise ConfigError(
            f"ingestion.kv_context_tokens: {config.kv_context_tokens} tokens and a chunk of "
            f"{config.chunk_tokens} exceed the model's positions; set it to {room} at most, or to 0"
        )
    return config.kv_context_tokens or min(DEFAULT_CONTEXT_TOKENS, room)


def is_current(stored: Manifest, model: ModelDescription) -> bool:
    """Whether the stored KV is what ``model`` would compute."""
    return not stored.made_for.differs_from(model.made_for)
