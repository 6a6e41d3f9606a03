"""Makes of documents the chunks that ingestion makes of them: its own chunker parts them into blocks and puts
headers and chunks in front of each other, its own identities name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cluster.gate.tasks import TaskDocument
from services.generator.identified import Identities
from services.generator.prompts import Prompts
from services.ingestion.chains import conditioned, identified
from services.ingestion.chunker import Chunker, HeadingPaths, TextChunk
from services.ingestion.config import IngestionConfig
from services.ingestion.formats.markdown import parse_markdown
from services.ingestion.formats.plain import parse_plain
from services.ingestion.recipe import context_tokens
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk
from shared.generation.selection import SelectionLink
from shared.kv_types import Manifest
from shared.prompt import PromptTokenizer

_TENANT = "quality"
_GAP = "\n\n"


@dataclass(frozen=True, slots=True)
class Ingested:
    """``chunks``: of each passage one, in the order of their numbers; ``links``: what they are computed
    behind, chunks and headers; ``texts``: what each chunk's ids are made of, template included;
    ``contexts``: of each chunk the same of its links, the first first."""

    chunks: tuple[Chunk, ...]
    links: tuple[Chunk, ...]
    texts: tuple[str, ...]
    contexts: tuple[tuple[SelectionLink, ...], ...]


class Ingesting:
    """For one model. ``vocab_size``, ``fingerprint``: its own.

    Raises:
        ConfigError: ``config`` does not fit the model.
    """

    def __init__(
        self, config: IngestionConfig, prompts: PromptTokenizer, vocab_size: int, fingerprint: str
    ) -> None:
        self._prompts = prompts
        self._of = (_TENANT, fingerprint, prompts.prefix_ids)
        room = context_tokens(config, len(prompts.prefix_ids))
        self.chunker = Chunker(prompts, config.chunk_tokens, config.kv_context, room)
        self._identities = Identities(Prompts(prompts, vocab_size, prompts.packets), fingerprint)

    def ingest(self, sources: Sequence[TaskDocument]) -> Ingested:
        """
        Raises:
            InvalidRequest: a passage is longer than a chunk.
        """
        chunks: dict[int, Chunk] = {}
        texts: dict[int, str] = {}
        contexts: dict[int, tuple[SelectionLink, ...]] = {}
        links: list[Chunk] = []
        for source in (source for source in sources if source.passages):
            cut = self.chunker.recut(source.title, self._text_chunks(source))
            if len(cut) != len(source.texts):
                raise InvalidRequest(
                    "--chunk-tokens: a passage is longer than a chunk; raise it, or lower --chars or "
                    "--passage-tokens"
                )
            found = self.chunks_of(self.named(source.title, cut), range(len(cut)))
            chunks |= zip(source.passages, found.chunks, strict=True)
            texts |= zip(source.passages, found.texts, strict=True)
            contexts |= zip(source.passages, found.contexts, strict=True)
            links += found.links
        return Ingested(
            tuple(chunks[i] for i in sorted(chunks)),
            tuple(dict.fromkeys(links)),
            tuple(texts[i] for i in sorted(texts)),
            tuple(contexts[i] for i in sorted(contexts)),
        )

    def named(self, title: str, cut: Sequence[TextChunk]) -> Manifest:
        """A document of these chunks."""
        return Manifest(_TENANT, "", "", title, chunks=identified(self._of, cut))

    def chunks_of(self, manifest: Manifest, indices: Sequence[int]) -> Ingested:
        """Some chunks of a document, in the order of ``indices``."""
        pieces = [conditioned(manifest, i) for i in indices]
        found = self._identities.of(_TENANT, self._prompts.prefix_ids, pieces)
        return Ingested(
            found.chunks,
            found.links,
            tuple(self._whole(manifest.chunks[i].text) for i in indices),
            tuple(self._context(manifest, i) for i in indices),
        )

    def _context(self, manifest: Manifest, index: int) -> tuple[SelectionLink, ...]:
        links = zip(manifest.link_texts_of(index), manifest.links_of(index), strict=True)
        return tuple(SelectionLink(self._whole(text), ids) for text, ids in links)

    def _whole(self, text: str) -> str:
        return self._prompts.template.chunk.replace("{text}", text)

    def _text_chunks(self, source: TaskDocument) -> list[TextChunk]:
        """Passages as chunks of the document that they make together, below its headings."""
        text = _GAP.join(source.texts)
        parsed = (parse_markdown if text.startswith("#") else parse_plain)(text.encode(), "utf-8")
        headings = HeadingPaths(parsed.headings)
        starts = accumulate((len(one) + len(_GAP) for one in source.texts), initial=0)
        return [
            TextChunk(one, self._prompts.encode_chunk(one), start, start + len(one), headings.at(start))
            for start, one in zip(starts, source.texts, strict=False)
        ]
