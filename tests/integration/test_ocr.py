"""Pages that are pictures become text by the commands that docs/operations.md names, where they are
installed."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from services.ingestion.formats.ocr import OcrCommand
from services.ingestion.formats.parse import parse
from services.ingestion.formats.reading import ParserSettings
from shared.documents import SourceDocument

LINES = ("Lease of the boat house", "The rent for May is 1,250 euros.", "The keeper is Orla Venn.")
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def scanned(lines: tuple[str, ...]) -> bytes:
    """A PDF with one page that is a picture of text: a little askew, blurred and grainy, as scanners do."""
    page = Image.new("L", (1654, 700), 245)
    draw = ImageDraw.Draw(page)
    for i, line in enumerate(lines):
        draw.text((150, 100 + 100 * i), line, fill=30, font=ImageFont.load_default(48))
    page = page.rotate(0.4, fillcolor=245).filter(ImageFilter.GaussianBlur(1))
    page = Image.blend(page, Image.effect_noise(page.size, 18), 0.1)
    page.save(file := io.BytesIO(), "PDF", resolution=200)
    return file.getvalue()


def documented() -> list[list[str]]:
    found = re.findall(r"^  ocr_command: \[(.*)\]$", OPERATIONS.read_text("utf-8"), re.MULTILINE)
    return [yaml.safe_load(f"[{arguments}]") for arguments in found]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", documented(), ids=lambda command: command[0])
def test_a_scanned_page_is_read_by_a_documented_command(command: list[str]) -> None:
    programs = [command[0], *re.findall(r"pdftoppm|tesseract", " ".join(command))]
    if missing := [program for program in programs if shutil.which(program) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    settings = ParserSettings(OcrCommand(command, 240.0), " ".join(command))
    parsed = parse(SourceDocument("scan.pdf", scanned(LINES)), settings)
    assert [line for line in parsed.text.splitlines() if line] == list(LINES)
    assert (parsed.warnings, parsed.incomplete) == ((), False)
