"""Calls the operator's command for pages that are pictures: a PDF of one page in, its text out."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.errors import ConfigError

log = logging.getLogger(__name__)

_PDF, _TEXT = "{pdf}", "{text}"
_SHOWN_CHARS = 200


class OcrFailed(Exception):
    """The message says what the command did, for whoever ingests."""


class OcrCommand:
    """``command`` is a program and its arguments, run without a shell, as a group of processes of its own.

    ``{pdf}`` in an argument is the path of the page; without one the page comes on standard input. ``{text}``
    is the path of the file that the text is read from afterwards; without one it is read from standard
    output. The text is UTF-8.

    Raises:
        ConfigError: there is no such program.
    """

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        if shutil.which(command[0]) is None:
            raise ConfigError(
                f"ingestion.ocr_command: there is no program {command[0]!r} on this machine; install it, or "
                "leave the setting empty"
            )
        self._command, self._timeout_s = tuple(command), timeout_s

    def __call__(self, pdf: bytes) -> str:
        """
        Raises:
            OcrFailed: it ended with an error, took too long, or wrote what is no UTF-8.
        """
        with tempfile.TemporaryDirectory(prefix="kvquilt-ocr-") as folder:
            page, text = Path(folder, "page.pdf"), Path(folder, "page.txt")
            page.write_bytes(pdf)
            command = [part.replace(_PDF, str(page)).replace(_TEXT, str(text)) for part in self._command]
            output = self._run(command, folder, page)
            try:
                if any(_TEXT in part for part in self._command):
                    output = text.read_bytes()
                return output.decode("utf-8")
            except FileNotFoundError:
                raise OcrFailed("it wrote no text file") from None
            except UnicodeDecodeError:
                raise OcrFailed("what it wrote is not UTF-8") from None

    def _run(self, command: Sequence[str], folder: str, page: Path) -> bytes:
        with open(page, "rb") as stdin:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise OcrFailed(f"it cannot be started: {error.strerror}") from None
        with process:
            try:
                output, complaint = process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                raise OcrFailed(f"it took more than {self._timeout_s:g} s") from None
            finally:
                with contextlib.suppress(ProcessLookupError):  # what it started goes with it
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            said = " ".join(complaint.decode("utf-8", "replace").split())[-_SHOWN_CHARS:]
            log.warning("ocr_command ended with %d: %s", process.returncode, said)
            raise OcrFailed(f"it ended with {process.returncode}" + (f": {said}" if said else ""))
        return output
