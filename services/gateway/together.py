"""Waits for two things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

OneT = TypeVar("OneT")
OtherT = TypeVar("OtherT")


async def both(one: Awaitable[OneT], other: Awaitable[OtherT]) -> tuple[OneT, OtherT]:
    """Of both that fail, the error of ``one`` is the more telling."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second
