"""Makes what others' benchmarks ask: questions with passages, and prompts with pasted documents."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from cluster.local.demo import shipped_questions
from cluster.paths import DEMO_ASSETS
from load_tests.pasted.documents import prose

_TEXTS = (".md", ".txt")
_QUESTION = "What did the surveyor measure, and when?"


def write_questions(path: Path, num: int, num_passages: int, seed: int) -> None:
    """The demo's questions about documents that are plain text, each with its own among other passages, in
    CacheBlend's form (``ctxs``)."""
    rng = random.Random(seed)
    folder = DEMO_ASSETS / "documents"
    texts = {
        str(file.relative_to(folder)): {"title": file.stem, "text": file.read_text(encoding="utf-8")}
        for file in sorted(folder.rglob("*"))
        if file.suffix in _TEXTS
    }
    records = []
    for number, asked in enumerate(q for q in shipped_questions() if q.document in texts):
        others = rng.sample([name for name in texts if name != asked.document], num_passages - 1)
        names = rng.sample([asked.document, *others], num_passages)
        records.append(
            {
                "id": str(number),
                "ctxs": [texts[name] for name in names],
                "question": asked.question,
                "answers": [asked.answer],
            }
        )
    path.write_text(json.dumps(records[:num]), encoding="utf-8")


def write_prompts(
    path: Path,
    num: int,
    num_documents: int,
    num_pasted: int,
    num_tokens: int,
    count: Callable[[str], int],
    seed: int,
) -> None:
    """Each is ``num_pasted`` of the documents in an order of its own, and a question. ``num_tokens``: of a
    document, by ``count``."""
    rng = random.Random(seed)
    documents = [prose(f"{seed}/{i}", num_tokens, count) for i in range(num_documents)]
    prompts = ["\n\n".join([*rng.sample(documents, num_pasted), _QUESTION]) for _ in range(num)]
    lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
