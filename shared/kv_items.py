"""Items: what a front door keeps for a tenant beside documents, such as files that were uploaded."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

from shared.errors import InvalidRequest
from shared.readers import EVERYBODY, Readers

_KIND = re.compile(r"[a-z_]{1,32}")
_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
_ID = re.compile(rf"{_PART}(/{_PART})?")


@dataclass(frozen=True, slots=True)
class Item:
    """``kind`` and ``id`` name it within its tenant. ``readers``: see ``shared.readers``. What follows is the
    store's to say: ``size_bytes`` and ``digest`` (SHA-256, hexadecimal) of its content, 0 and empty if it has
    none; ``created_s`` (since 1970) and ``stored_by``: when, and by whom, it was first put."""

    kind: str
    id: str
    fields: dict[str, str] = field(default_factory=dict)
    readers: Readers = EVERYBODY
    size_bytes: int = 0
    digest: str = ""
    created_s: float = 0.0
    stored_by: str = ""

    @property
    def name(self) -> str:
        """Of all that a tenant has."""
        return f"{self.kind}/{self.id}"

    def cursor(self, kind: str) -> str:
        """Where a list of ``kind`` (empty: of all kinds) goes on behind it."""
        return self.id if kind else self.name


class Expected(enum.Enum):
    """Whether there is an item already. THERE: its content stays. RESTORED: as NEW, and what was the store's
    to say stays as the item says it: it was kept before, and maybe elsewhere."""

    EITHER = "either"
    NEW = "new"
    THERE = "there"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class ItemPage:
    """``unreadable``: names of those among them that are damaged, or of a later version; for callers who read
    everything."""

    items: tuple[Item, ...]
    truncated: bool
    unreadable: tuple[str, ...] = ()


def check_item_name(kind: str, item_id: str) -> None:
    """
    Raises:
        InvalidRequest: names what is no name.
    """
    check_kind(kind)
    if not _ID.fullmatch(item_id):
        raise InvalidRequest(
            f"id: {item_id[:80]!r} is none: one or two parts of letters, digits, '-', '_' and '.', at most "
            "128 each, with '/' between them"
        )


def check_kind(kind: str) -> None:
    """Raises like ``check_item_name``."""
    if not _KIND.fullmatch(kind):
        raise InvalidRequest(f"kind: {kind[:80]!r} is none: 1 to 32 small letters and '_'")
