"""Recorded passes over stored KV that is on its way: each layer behind its own copies, on a stand-in for a
GPU that copies as late as it may, with the kernels in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.kv.arrival import Copied
from shared.engine.kv.chunk_reads import ReadList
from shared.engine.model.passes import PassRunner
from tests.engine_runs import Prompts, Shelf, assert_equals_oracle, engine_of, run
from tests.interpreter.test_pass_graphs import Recorder
from tests.interpreter.test_waits import gpu  # noqa: F401
from tests.oracles import tiny_model
from tests.pretend_gpu import PretendEvent, PretendGpu

CHUNKS = (9, 12)


class Gates:
    """``early``: of each layer that a pass came to, whether copies for later ones were still to come."""

    def __init__(self) -> None:
        self.copies: dict[int, list[PretendEvent]] = {}
        self.early: list[tuple[int, bool]] = []

    def wait(self, layer: int) -> None:
        for copied in self.copies.get(layer, ()):
            copied.wait()
        later = [copied for at, copies in self.copies.items() if at > layer for copied in copies]
        if self.copies:
            self.early.append((layer, any(not copied.query() for copied in later)))

    def open_behind(self, layer: int, copies: Sequence[Copied]) -> None:
        self.copies[layer] = [copied for copied in copies if isinstance(copied, PretendEvent)]


def engine_over(shelf: Shelf) -> Engine:
    model = wrap_model(tiny_model("qwen2").to("cuda"))
    config = EngineConfig(device="cuda", backend="triton", cuda_graphs=False, num_threads=1, loader_threads=1)
    return Engine(model, config, shelf)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_recorded_pass_begins_before_the_copies_of_later_layers_are_done(
    gpu: PretendGpu,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    shelf = Shelf()
    here = engine_of("qwen2", backend="torch", source=shelf)
    prompts = Prompts(here, seed=3)
    requests = [prompts.request(7, CHUNKS, (4,), max_tokens=1) for _ in range(3)]
    for request in requests:
        run(here, request)
    here.shut_down()
    for key, kv_LHTD in shelf.kv.items():
        shelf.kv[key] = tuple([x.pin_memory() for x in x_LHTD] for x_LHTD in kv_LHTD)  # type: ignore[assignment]

    made = ReadList.__init__
    monkeypatch.setattr(
        ReadList, "__init__", lambda self, reads, layers, _: made(self, reads, layers, at_once)
    )
    engine, recorder, gates = engine_over(shelf), Recorder(), Gates()
    engine._steps.passes = PassRunner(engine.model, engine.config, recorder, gates)
    for request in requests:  # of one form: the first pass runs, the second is recorded, the third is again
        (told,) = run(engine, replace(request, request_id=f"{request.request_id}-again"))
        assert told.done.usage.loaded_tokens == sum(CHUNKS)
        assert_equals_oracle(told, tiny_model("qwen2"))
    engine.shut_down()
    assert recorder.num_again > 0
    num_layers = engine.model.spec.num_layers
    starts = list(range(0, num_layers, at_once))
    assert sorted(gates.copies) == starts
    assert all(len(copies) == len(CHUNKS) for copies in gates.copies.values())
    behind = dict(gates.early[:num_layers])
    assert behind == {layer: layer < starts[-1] for layer in range(num_layers)}
