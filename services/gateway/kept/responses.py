"""Answers that callers let the server keep, so that their next question goes on from them.

Each is whole in itself: it holds what was said in front of it too, so that the ones that it went on from may
be deleted. Only the principal that asked finds it, for as long as the settings say.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from services.gateway.config import ResponsesConfig
from services.gateway.kept.paging import all_items
from shared.admission.entrance import Entrance
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import CorruptData, InvalidRequest, KvquiltError, NotFound
from shared.kv_items import Expected, Item
from shared.kv_stores import ItemStore
from shared.request import RequestContext

KIND = "response"
_ID = re.compile(r"resp_[0-9a-f]{36}")
_VERSION = 1
_COUNTED_ANEW_S = 60.0
_SPARE = 0.1  # of the room, made when it is full, so that not every answer has to make some

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """``body``: as it was answered; ``said``: role and text of each message that it was asked by; ``turns``:
    the whole conversation, with its own question and answer last."""

    id: str
    body: dict[str, Any]
    said: tuple[tuple[str, str], ...]
    turns: tuple[EarlierTurn, ...]


@dataclass(slots=True)
class _Counted:
    """``num_bytes`` of a tenant's as they were at ``at_s``, and what was kept here since. ``at_s`` counts
    without a calendar: the time of the day may be set."""

    num_bytes: int
    at_s: float


class Responses:
    """``entrance``: where memory for reading them is counted; ``clock``: seconds since 1970; ``passed``:
    seconds that nobody sets. Ids follow the time, so the oldest come first."""

    def __init__(
        self,
        items: ItemStore,
        config: ResponsesConfig,
        entrance: Entrance,
        clock: Callable[[], float] = time.time,
        passed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._items, self._config, self._entrance = items, config, entrance
        self._clock, self._passed = clock, passed
        self._counted: dict[str, _Counted] = {}  # by tenant

    def keeps(self, asked: bool | None) -> bool:
        """Whether an answer is to be kept; ``asked`` None: its request does not say.

        Raises:
            InvalidRequest: it is asked for, and none are kept.
        """
        if self._config.most_bytes:
            return self._config.store if asked is None else asked
        if asked:
            raise InvalidRequest("store: this server keeps no responses (gateway.responses); leave it out")
        return False

    def new_id(self) -> str:
        return f"resp_{int(1000 * self._clock()):012x}{secrets.token_hex(12)}"

    async def keep(self, ctx: RequestContext, response: KeptResponse) -> bool:
        """Durable when it returns; False: it is not kept, for the reason in the log."""
        content = _content_of(response)
        try:
            await self._make_room(ctx, len(content))
            await self._items.put_item(ctx, Item(KIND, response.id), content, Expected.NEW)
        except KvquiltError as error:
            log.warning("response %s is not kept: %s", response.id, error.detail)
            return False
        self._counted[ctx.tenant].num_bytes += len(content)
        return True

    async def get(self, ctx: RequestContext, response_id: str) -> KeptResponse:
        """
        Raises:
            NotFound: there is none, any more, or it is somebody else's.
        """
        item = await self._own(ctx, response_id)
        with self._entrance.entered(ctx.principal, item.size_bytes, counted=False):
            _, content = await self._items.get_item(ctx, KIND, response_id, with_content=True)
            return _response_of(response_id, content)

    async def delete(self, ctx: RequestContext, response_id: str) -> None:
        """Raises like ``get``."""
        await self._own(ctx, response_id)
        await self._items.delete_item(ctx, KIND, response_id)

    async def _own(self, ctx: RequestContext, response_id: str) -> Item:
        if not _ID.fullmatch(response_id):
            raise absent(response_id)
        try:
            item, _ = await self._items.get_item(ctx, KIND, response_id)
        except NotFound:
            raise absent(response_id) from None
        if item.stored_by != ctx.principal.name or self._is_over(item):
            raise absent(response_id)
        return item

    async def _make_room(self, ctx: RequestContext, num_bytes: int) -> None:
        """
        Raises:
            InvalidRequest: it is larger than the room.
        """
        most = self._config.most_bytes
        if num_bytes > most:
            raise InvalidRequest(f"it has {num_bytes} bytes, and gateway.responses.most_bytes is {most}")
        counted = self._counted.get(ctx.tenant)
        known = counted is not None and self._passed() - counted.at_s < _COUNTED_ANEW_S
        if counted is None or not known or counted.num_bytes + num_bytes > most:
            self._counted[ctx.tenant] = _Counted(await self._trim(ctx, num_bytes), self._passed())

    async def _trim(self, ctx: RequestContext, num_bytes: int) -> int:
        """Removes what is over and, if ``num_bytes`` more lack room, the oldest; returns the bytes left."""
        items = await all_items(self._items, ctx, KIND)
        left = sum(item.size_bytes for item in items)
        current = sum(item.size_bytes for item in items if not self._is_over(item))
        full = current + num_bytes > self._most
        room = (1 - _SPARE) * self._most - num_bytes if full else self._most
        for item in items:
            if self._is_over(item) or (full and left > room):
                with suppress(NotFound):  # another replica did
                    await self._items.delete_item(ctx, KIND, item.id)
                left -= item.size_bytes
        return left

    @property
    def _most(self) -> int:
        return self._config.most_bytes

    def _is_over(self, item: Item) -> bool:
        return self._clock() - item.created_s >= self._config.kept_s


def absent(response_id: str) -> NotFound:
    return NotFound(
        f"response {response_id[:80]!r}: there is none; one is kept if it was asked for with store: true, "
        "for a time (gateway.responses)"
    )


def _content_of(response: KeptResponse) -> bytes:
    turns = [(turn.speaker.value, turn.text) for turn in response.turns]
    told = {"version": _VERSION, "body": response.body, "said": response.said, "turns": turns}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def _response_of(response_id: str, content: bytes) -> KeptResponse:
    try:
        told = json.loads(content)
        if told["version"] != _VERSION:
            raise CorruptData(f"response {response_id!r}: was kept by another version of kvquilt")
        turns = tuple(EarlierTurn(Speaker(speaker), text) for speaker, text in told["turns"])
        said = tuple((role, text) for role, text in told["said"])
        return KeptResponse(response_id, told["body"], said, turns)
    except (ValueError, KeyError, TypeError):
        raise CorruptData(f"response {response_id!r}: is damaged; delete it") from None
