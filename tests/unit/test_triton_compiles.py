"""The Triton kernels are compiled for a GPU of the Hopper generation, on whatever machine this is: types,
layouts and the use of its tensor cores and asynchronous copies are proved without one; numbers are not
(``tests/interpreter``, ``tests/gpu``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.backends.tables import FIXED, Tiling
from tests.attention_steps import Shape, spec_of

triton = pytest.importorskip("triton")
HOPPER_SHARED_BYTES = 227 << 10
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[None]:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        yield


def compiled(kernel: Any, types: dict[str, str], settings: dict[str, Any]) -> Any:
    """As a launch would compile it: strides, pointers and numbers of elements are multiples of 16."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {name: value for name, value in settings.items() if name.isupper()}
    options = {name: value for name, value in settings.items() if not name.isupper()}
    names = list(kernel.arg_names)
    assert {*types, *constants} == set(names)
    signature = {name: types.get(name, "constexpr") for name in names}
    unspecialised = {param.name for param in kernel.params if param.do_not_specialize}
    aligned = [
        i
        for i, name in enumerate(names)
        if signature[name].startswith("*")
        or (name.startswith(("stride", "count")) and name not in unspecialised)
    ]
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def types(pointers: dict[str, str], numbers: str) -> dict[str, str]:
    return {name: f"*{kind}" for name, kind in pointers.items()} | dict.fromkeys(numbers.split(), "i32")


def attend(shape: Shape, tiling: Tiling, excludes: bool) -> Any:
    from shared.engine.backends.triton import attend_settings
    from shared.engine.backends.triton_kernels import attend_kernel

    pointers = {"q": NAMES[shape.dtype], "hidden": "i64", "addresses": "i64"}
    pointers |= dict.fromkeys(("out", "lse", "cos", "sin", "sharpness"), "fp32") | dict.fromkeys(
        ("items", "pieces", "looks"), "i32"
    )
    signature = types(pointers, "layer num_layers stride_qh stride_qr split_len") | {"scale": "fp32"}
    return compiled(
        attend_kernel, signature, attend_settings(spec_of(shape, torch.device("cuda")), tiling, excludes)
    )


QWEN2_7B = Shape(torch.bfloat16, num_kv_heads=4, group=7, head_dim=128)


@pytest.mark.parametrize(
    ("tiling", "excludes"),
    [(Tiling(16, 256), False), (FIXED, True), (Tiling(64, 4096), False), (Tiling(64, 4096), True)],
    ids=str,
)
def test_attend_uses_tensor_cores_and_asynchronous_copies_and_spills_nothing_of_note(
    tiling: Tiling, excludes: bool
) -> None:
    kernel = attend(QWEN2_7B, tiling, excludes)
    ptx = kernel.asm["ptx"]
    assert ("wgmma.mma_async" if tiling.block_rows >= 64 else "mma.sync") in ptx
    assert "cp.async" in ptx, "keys and values are not loaded ahead"
    assert "ld.global.b16" not in ptx, "numbers are loaded one by one: the alignment of a segment is lost"
    assert kernel.metadata.shared <= HOPPER_SHARED_BYTES // 2, "two programs must fit a processor"
    depot = re.search(r"__local_depot\d+\[(\d+)\]", ptx)
    assert depot is None or int(depot.group(1)) <= 256


@pytest.mark.parametrize(
    ("shape", "num_rows"),
    [
        (QWEN2_7B, 128),
        (Shape(torch.float16, 8, 4, 64), 128),
        (Shape(torch.bfloat16, 8, 2, 256), 64),
        (Shape(torch.float32, 8, 2, 128), 64),
    ],
    ids=str,
)
def test_tiles_are_as_high_as_a_processor_has_memory_for(shape: Shape, num_rows: int) -> None:
    from shared.engine.backends.triton import high_tile

    spec = spec_of(shape, torch.device("cuda"))
    assert high_tile(spec, (9, 0)) == num_rows
    assert high_tile(spec, (8, 9)) == 64
    kernel = attend(shape, Tiling(num_rows, 4096), excludes=True)
    assert kernel.metadata.shared <= HOPPER_SHARED_BYTES


@pytest.mark.parametrize(
    "shape",
    [
        Shape(torch.float16, 8, 4, 64),
        Shape(torch.float32, 32, 1, 16, 0.5),
        Shape(torch.bfloat16, 8, 2, 256),
    ],
    ids=str,
)
def test_attend_compiles_for_every_type_and_head(shape: Shape) -> None:
    assert attend(shape, FIXED, excludes=True).metadata.shared <= HOPPER_SHARED_BYTES


@pytest.mark.parametrize("shape", [QWEN2_7B, Shape(torch.float32, 2, 2, 96, 0.5)], ids=str)
def test_append_and_merge_compile_and_move_whole_words(shape: Shape) -> None:
    from shared.engine.backends.triton import append_settings, merge_settings
    from shared.engine.backends.triton_kernels import append_kernel, merge_kernel

    spec, dtype = spec_of(shape, torch.device("cuda")), NAMES[shape.dtype]
    pointers = {
        "k": dtype,
        "v": dtype,
        "cos": "fp32",
        "sin": "fp32",
        "own": "i32",
        "pieces": "i32",
        "addresses": "i64",
    }
    numbers = "layer num_layers num_rows stride_kh stride_kr stride_vh stride_vr"
    ptx = compiled(append_kernel, types(pointers, numbers), append_settings(spec)).asm["ptx"]
    assert "st.global.v" in ptx
    assert "st.global.b16" not in ptx
    pointers = dict.fromkeys(("out", "lse", "more"), "fp32") | dict.fromkeys(("first_slot", "joint"), "i32")
    pointers["merged"] = dtype
    compiled(merge_kernel, types(pointers, "num_rows"), merge_settings(spec))


def test_an_activation_and_its_gate_move_sixteen_bytes_at_a_time() -> None:
    from shared.engine.model.fused_kernels import silu_times_kernel

    signature = types(dict.fromkeys(("gate", "up", "out"), "bf16"), "count")
    ptx = compiled(silu_times_kernel, signature, {"BLOCK": 1024}).asm["ptx"]
    assert "ld.global.v4" in ptx
    assert "st.global.v4" in ptx
    assert "global.b16" not in ptx
