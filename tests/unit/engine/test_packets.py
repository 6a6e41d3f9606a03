"""Soft-token packets: the laws with chunks between packets, that what reads no stored KV knows nothing of
them, and what is refused.

The oracle is that of the mode, by a stock model that embeds the packets' ids as their vectors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from shared.engine import Engine, wrap_model
from shared.engine.model.model import LoadedModel
from shared.engine.model.packets import WEIGHTS, read_packets, write_packets
from shared.errors import ConfigError, CorruptData, InvalidRequest, KvquiltError, ModelMismatch
from shared.generation.asked import GenerateRequest, PrefillRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.packets import FACTS, PacketIds
from tests.engine_runs import Prompts, Shelf, assert_equals_oracle, run
from tests.lora_adapters import random_adapter
from tests.oracles import FAMILIES, VOCAB, as_dtype, tiny_model
from tests.soft_packets import knowing, random_packets

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = PacketIds(VOCAB, 3, 2)


def packed_model(family: str = "qwen2", dtype: torch.dtype = torch.float32) -> LoadedModel:
    model = wrap_model(as_dtype(tiny_model(family), dtype))
    model.place_packets(random_packets(model))
    return model


def asked(prompts: Prompts, chunks: Sequence[int] = (20, 1, 33), **pieces: Any) -> GenerateRequest:
    """Chunks of so many tokens, between packets."""
    return prompts.request(chunks=[IDS.around(prompts.ids(length)) for length in chunks], **pieces)


class TestLaws:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("reuse", [ReuseMode.REORDERED, ReuseMode.COMPOSITE, ReuseMode.APE])
    def test_chunks_between_packets_are_what_stock_embeds(self, family: str, reuse: ReuseMode) -> None:
        model = packed_model(family)
        (one,) = run(engine := Engine(model), asked(Prompts(engine), reuse=reuse, questions=(9, 4)))
        assert_equals_oracle(one, knowing(tiny_model(family), random_packets(model)))

    @settings(max_examples=10, deadline=None)
    @given(st.integers(0, 2**20), st.integers(0, 5), st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def test_whatever_the_lengths(self, seed: int, prefix: int, chunks: list[int]) -> None:
        model = packed_model()
        (one,) = run(engine := Engine(model), asked(Prompts(engine, seed), chunks, prefix=prefix))
        assert_equals_oracle(one, knowing(tiny_model("qwen2"), random_packets(model)))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_full_and_what_knows_no_packets_keep_their_bits(self, dtype: torch.dtype) -> None:
        """A request without chunks, and ``full``, whose chunks may come with packets or without."""
        plain = Engine(wrap_model(as_dtype(tiny_model("qwen2"), dtype)))
        engine = Engine(packed_model(dtype=dtype))
        full = asked(Prompts(engine), reuse=ReuseMode.FULL)
        bare = replace(full, chunks=tuple(replace(c, token_ids=IDS.plain(c.token_ids)) for c in full.chunks))
        without = Prompts(engine, 1).request(chunks=())
        theirs = [run(plain, request)[0] for request in (bare, without)]
        for request, other in zip((full, bare, without), (theirs[0], *theirs), strict=True):
            (ours,) = run(engine, request)
            assert ours.branches() == other.branches()
            assert ours.done.usage == other.done.usage


def test_ids_on_the_device_are_embedded_as_those_on_the_host() -> None:
    model = packed_model()
    ids = [5, *IDS.around((7, 256)), 9]
    assert torch.equal(model.embed(torch.tensor(ids)), model.embed(ids))
    assert torch.equal(model.embed([5, 9]), wrap_model(tiny_model("qwen2")).embed([5, 9]))


class TestStored:
    def test_a_chunk_is_stored_with_its_packets(self) -> None:
        shelf, model = Shelf(), packed_model()
        engine = Engine(model, source=shelf)
        request = asked(Prompts(engine))
        run(engine, PrefillRequest("prefill", request.prefix_ids, request.chunks))
        assert {k[0].shape[1] for k, _ in shelf.kv.values()} == {25, 6, 38}
        again = Engine(packed_model(), source=shelf)
        (one,) = run(again, request)
        assert one.done.usage.loaded_tokens == 25 + 6 + 38
        assert_equals_oracle(one, knowing(tiny_model("qwen2"), random_packets(model)))

    def test_they_are_part_of_the_fingerprint(self) -> None:
        models = [wrap_model(tiny_model("qwen2")) for _ in range(4)]
        for model, seed in zip(models[1:], (0, 0, 1), strict=True):
            model.place_packets(random_packets(model, seed=seed))
        none, one, same, other = (model.fingerprint for model in models)
        assert none == models[1].base_fingerprint
        assert one == same
        assert len({none, one, other}) == 3

    def test_an_adapter_of_the_model_serves_with_them(self) -> None:
        model = packed_model()
        adapter = random_adapter(tiny_model("qwen2"), "qa", 1)
        facts = replace(adapter.facts, fingerprint=model.base_fingerprint)
        engine = Engine(model, adapters=[replace(adapter, facts=facts)])
        request = asked(Prompts(engine))
        (one,), (other,) = run(engine, request), run(engine, replace(request, adapter="qa"))
        assert one.branches() != other.branches()


class TestRefused:
    @pytest.mark.parametrize("reuse", [mode for mode in ReuseMode if mode.recomputes])
    def test_modes_that_compute_tokens_anew(self, reuse: ReuseMode) -> None:
        engine = Engine(packed_model())
        recompute = Recompute(tokens=(0,)) if reuse is ReuseMode.TOKENS else Recompute(ratio=0.2)
        with pytest.raises(InvalidRequest, match=rf"^reuse: {reuse.value} computes tokens anew"):
            run(engine, asked(Prompts(engine), reuse=reuse, recompute=recompute))

    def test_chunks_without_them_behind_others_or_with_other_ids(self) -> None:
        engine = Engine(packed_model())
        prompts = Prompts(engine)
        with pytest.raises(InvalidRequest, match=r"^chunks\[0\]: does not stand between the model's packets"):
            run(engine, prompts.request())
        chunk = prompts.chunk((), IDS.around((5, 6)), "parent")
        with pytest.raises(InvalidRequest, match=r"^chunks\[0\]: is computed behind another chunk"):
            run(engine, replace(asked(prompts), chunks=(chunk,)))
        with pytest.raises(InvalidRequest, match=r"^questions\[0\]: token id 257 is outside the vocabulary"):
            run(engine, asked(prompts, questions=[(VOCAB,)]))
        plain = Engine(wrap_model(tiny_model("qwen2")))
        with pytest.raises(InvalidRequest, match=r"^chunks\[0\]: token id 257 is outside the vocabulary"):
            run(plain, asked(Prompts(plain)))

    def test_packets_of_another_model(self) -> None:
        model = wrap_model(tiny_model("qwen2"))
        packets = random_packets(model)
        for changed, name in (
            (replace(packets, facts=replace(packets.facts, vocab_size=5)), "vocab_size"),
            (replace(packets, vectors_PE=packets.vectors_PE[:, :8]), "hidden size"),
            (replace(packets, facts=replace(packets.facts, fingerprint="ab")), "fingerprint"),
        ):
            with pytest.raises(ModelMismatch, match=rf"^packets: {name}: .*\(tiny\), or train some"):
                model.place_packets(changed)


class TestFiles:
    def written(self, directory: Path) -> Path:
        write_packets(random_packets(wrap_model(tiny_model("qwen2"))), directory)
        return directory

    def test_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        packets = random_packets(wrap_model(tiny_model("qwen2")))
        read = read_packets(self.written(tmp_path / "packets"))
        assert read.facts == packets.facts
        assert torch.equal(read.vectors_PE, packets.vectors_PE)
        assert read.facts.ids == IDS

    def test_that_are_not_there_or_say_something_else(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"is not there; name a folder that `kvquilt train packets`"):
            read_packets(tmp_path / "none")
        path = self.written(tmp_path) / FACTS
        facts = json.loads(path.read_text())
        for content, message in (
            ("{", "cannot be read as JSON"),
            ("[]", "expected an object"),
            (json.dumps(facts | {"num_header": -1}), "num_header: must be at least 0, got -1"),
            (json.dumps(facts | {"more": 1}), "more: unknown setting"),
        ):
            path.write_text(content)
            with pytest.raises(ConfigError, match=message):
                read_packets(tmp_path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: {"header": t["header"]}, "has no tensor 'trailer'"),
            (lambda t: t | {"header": t["header"][:2]}, r"header has the shape \(2, 64\), .* 3 vectors"),
            (lambda t: t | {"trailer": t["trailer"].int()}, "trailer has the shape"),
            (
                lambda t: t | {"trailer": t["trailer"] * float("nan")},
                "trailer has values that are not finite",
            ),
            (lambda t: t | {"trailer": t["trailer"][:, :9].contiguous()}, "are not equally wide"),
        ],
    )
    def test_with_other_vectors(self, tmp_path: Path, change: Any, message: str) -> None:
        path = self.written(tmp_path) / WEIGHTS
        save_file(change(load_file(path)), path)
        with pytest.raises(CorruptData, match=message):
            read_packets(tmp_path)

    def test_cut_short(self, tmp_path: Path) -> None:
        path = self.written(tmp_path) / WEIGHTS
        for content in (path.read_bytes()[:-9], b""):
            path.write_bytes(content)
            with pytest.raises(CorruptData, match="truncated or broken; copy the folder again"):
                read_packets(tmp_path)
        path.unlink()
        with pytest.raises(KvquiltError):
            read_packets(tmp_path)


def test_ids_around_a_chunk_are_put_there_once() -> None:
    assert IDS.around((7, 8)) == (257, 258, 259, 7, 8, 260, 261) == IDS.around(IDS.around((7, 8)))
    assert IDS.plain(IDS.around((7, 8))) == (7, 8)
    assert len(IDS) == 5
