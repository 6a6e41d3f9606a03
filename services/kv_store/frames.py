"""What the end of a chunk's file says about it."""

from shared.errors import NewerFormat
from shared.kv_format import TAIL_GUESS_BYTES, ShortTail, summary_of_tail

__all__ = ["TAIL_GUESS_BYTES", "NewerFormat", "ShortTail", "summary_of_tail"]
