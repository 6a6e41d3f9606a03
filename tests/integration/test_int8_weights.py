"""Int8 weights, through the generator's service and on the demo model."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from cluster.paths import DEMO_MODEL
from load_tests.encodings.__main__ import bench_of
from load_tests.weights.__main__ import measure
from shared.engine.model.linear_kernels import best_level
from shared.errors import ModelUnsupported
from shared.generation.asked import SamplingParams
from shared.generation.told import DoneEvent, TokenEvent
from tests.generation_server import Served, context, order_of, serving
from tests.kv_directory import DirectoryStore
from tests.oracles import tiny_model

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not best_level(), reason="no kernels of int8 weights on this processor"),
]

PASSAGES = (
    "Brenholm is a small town on the river Ald. It was founded in 1612. Market day in Brenholm is Friday.",
    "The Silver Otter is a ship of three masts. Its captain is Mara Tolin. It was built in 1871.",
)
QUESTION = "Who is the captain of the Silver Otter?"


async def ask(served: Served) -> tuple[str, int]:
    """The answer, and how many tokens of stored chunks it was read from."""
    order = order_of(PASSAGES, [QUESTION], "reordered", sampling=SamplingParams(max_tokens=24))
    async with aclosing(served.client.generate(context(), order)) as stream:
        events = [event async for event in stream]
    (done,) = (event for event in events if isinstance(event, DoneEvent))
    return "".join(e.text for e in events if isinstance(e, TokenEvent)), done.usage.loaded_tokens


async def test_kv_by_exact_and_by_int8_weights_stand_side_by_side(tmp_path: Path) -> None:
    """Each finds its own again, and neither takes the other's."""
    store, fingerprints, stored = DirectoryStore(tmp_path / "kv"), {}, {}
    for weights in ("exact", "int8", "int8", "exact"):
        async with serving(DEMO_MODEL, store, engine={"weights": weights}) as served:
            answer, loaded = await ask(served)
            fingerprint = (await served.client.describe(context())).fingerprint
        assert "captain of the Silver Otter is Mara" in answer
        assert bool(loaded) == (weights in fingerprints)
        assert fingerprints.setdefault(weights, fingerprint) == fingerprint
        stored[weights] = len(store.chunk_ids())
    assert fingerprints["exact"] != fingerprints["int8"]
    assert stored == {"exact": 2 * len(PASSAGES), "int8": 2 * len(PASSAGES)}


async def test_a_model_that_cannot_have_them_says_why(tmp_path: Path) -> None:
    tiny_model("mixtral").save_pretrained(tmp_path)
    async with serving(tmp_path, engine={"weights": "int8"}) as served:
        with pytest.raises(
            ModelUnsupported, match=r"engine\.weights: layer 0 has weights that are no linear"
        ):
            await served.client.describe(context())


def test_they_cost_the_demo_model_little() -> None:
    with bench_of(str(DEMO_MODEL), 12) as exact, bench_of(str(DEMO_MODEL), 12, "int8") as int8:
        values = {m.name: m.value for m in measure(exact, int8)}
    assert 0 < values["kl_int8_weights"] < 0.002
    assert values["top1_agreement_int8_weights"] >= 0.985
    assert values["answers_as_exact_int8_weights"] >= 0.9
    assert values["weight_bytes_int8"] > 0
