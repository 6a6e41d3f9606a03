"""Settles the commands of a live forest: their pieces become ids, growth gets its limit."""

from __future__ import annotations

from dataclasses import replace

from services.generator.config import GeneratorConfig
from services.generator.prompts import Prompts
from shared.errors import InvalidRequest
from shared.generation.forest import Append, Edit, Grow, Start


def settled(command: Edit, prompts: Prompts, config: GeneratorConfig) -> Edit:
    """Returns ``command`` as the engine is told it.

    Raises:
        InvalidRequest: a piece that cannot be made ids, or more tokens than are allowed.
    """
    match command:
        case Start(branch, piece):
            return Start(branch, prompts.question("start.piece", piece))
        case Append(branch, piece):
            return Append(branch, prompts.plain("append.piece", piece))
        case Grow(branch, sampling):
            asked, limit = sampling.max_tokens or config.max_tokens, config.max_tokens_limit
            if asked > limit:
                raise InvalidRequest(f"grow.sampling.max_tokens: {asked} is more than the {limit} allowed")
            return Grow(branch, replace(sampling, max_tokens=asked))
        case _:
            return command
