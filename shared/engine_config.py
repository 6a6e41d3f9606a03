"""The settings of an engine. Apart from ``weights``, nothing here changes a result beyond rounding, of
requests that name no adapter.

Apart from the engine's package, which brings torch along: whoever only reads settings does without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from shared.config import check_least
from shared.generation.orders import NO_ADAPTER

GIB = 1 << 30

Weights = Literal["exact", "int8"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """
    dtype: of weights and KV; ``auto`` takes the checkpoint's.
    weights: of linear layers. ``exact`` takes the checkpoint's, in dtype. ``int8`` keeps one byte of each and
        a scale per output, so that a CPU reads half as much in a step of few rows. Stored KV is then another
        model's (another fingerprint). Not on a GPU, not with compile (docs/models.md).
    device: a torch device, ``cpu`` or ``cuda``.
    backend: of attention. ``auto`` is ``triton`` on a GPU and ``native`` (C kernels) on a CPU, where these
        work, else ``torch``; ``flash_attn`` (GPU, the extra gpu) suits offline prefill; ``reference`` is the
        slow twin of all.
    batch_invariant: fixed tiles and split order, so that no request's bits depend on its company. Slower;
        much slower for several branches where products are not row by row the same (docs/attention.md).
    compile: torch.compile makes one piece of what stands between two attentions, so that a GPU is told of
        fewer kernels per layer. The first step takes half a minute longer; needs a compiler. For GPUs; not
        with batch_invariant.
    cuda_graphs: on a GPU with backend triton, passes of up to 512 rows are recorded and launched as a whole:
        a GPU runs the kernels of few rows faster than Python launches them. Takes up to some hundred MiB.
    max_step_tokens: most rows of one step, over all requests.
    max_running_branches: requests beyond this many branches wait.
    max_waiting: requests beyond this many are refused as overloaded.
    resident_bytes: pool of chunk segments shared by all requests. Unset it follows from what is free: on a
        GPU four fifths of that less private_bytes, on a CPU half of it, at most 4 GiB.
    resident_floor: the share of resident_bytes that stays a tenant's when others need room, for what he used
        last; all floors together take half of the pool at most, and the pool may exceed resident_bytes by
        them. 0: whoever asks last has the room.
    private_bytes: KV of questions and answers; above it the youngest request pauses, its KV kept.
    conversation_bytes: of private_bytes, what KV of earlier turns may take that is kept for the next one;
        what requests need of it is given up. 0: none is kept (docs/conversations.md).
    conversation_tenant_bytes: the most of that for one tenant; whoever would have more loses what he used
        least recently.
    conversation_s: seconds after which KV of a conversation is given up that was not used again.
    num_threads: of torch; 0 leaves torch's own choice.
    loader_threads: read the stored KV of one request; one more writes.
    speculation: rows up to which a step is filled with drafts: tokens that probably come next, since they did
        so in the context. A step of so few rows takes about as long as one of a single row: 8 suit CPUs
        without matrix units, more others. 0: no drafts. Unset: 8 on a CPU, 0 on a GPU. Nothing is drafted
        with batch_invariant (docs/multidecode.md).
    pipelined: a request may begin while its stored KV is still being read, if nothing else can run. False
    waits for all of it.
    overlap_from_s: it begins if the rest of the reading will take at least this long. Reading from memory
        disturbs a computation on the same processors more than the overlap saves. On a GPU it begins with the
        first layer.
    late_rows: a chunk whose stored KV will probably come later than computing it would end is computed beside
        its loading; what ends first is used. This many rows of a step may go to such chunks, of those that
        nobody else wants, and none while requests wait for admission. 0: stored KV is always waited for.
        Unset: 512 on a CPU, 0 on a GPU (docs/load-or-compute.md).
    late_from_s: only if that will probably save at least this long.
    adapters: directories of adapters that requests may name, by name, as PEFT saves them (docs/adapters.md).
        Not with compile.
    """

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    weights: Weights = "exact"
    device: str = "cpu"
    backend: Literal["auto", "native", "torch", "triton", "flash_attn", "reference"] = "auto"
    batch_invariant: bool = False
    compile: bool = False
    cuda_graphs: bool = True
    max_step_tokens: int = 2048
    max_running_branches: int = 64
    max_waiting: int = 256
    resident_bytes: int | None = None
    resident_floor: float = 0.1
    private_bytes: int = 2 * GIB
    conversation_bytes: int = GIB
    conversation_tenant_bytes: int = GIB // 2
    conversation_s: float = 600.0
    num_threads: int = 0
    loader_threads: int = 2
    speculation: int | None = None
    pipelined: bool = True
    overlap_from_s: float = 0.03
    late_rows: int | None = None
    late_from_s: float = 0.1
    adapters: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def on_gpu(self) -> bool:
        return self.device.partition(":")[0] == "cuda"

    @property
    def draft_rows(self) -> int:
        """Rows up to which a step is filled with drafts: none with batch_invariant, where a token's bits
        would depend on the rows of its draft."""
        if self.batch_invariant:
            return 0
        if self.speculation is None:
            return 0 if self.on_gpu else 8
        return self.speculation

    @property
    def rows_of_late_chunks(self) -> int:
        """Of a step, at most."""
        if self.late_rows is None:
            return 0 if self.on_gpu else 512
        return self.late_rows

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device: {self.device!r} is not one of cpu, cuda, cuda:0, cuda:1, …")
        check_least(
            self,
            1,
            "max_step_tokens",
            "max_running_branches",
            "max_waiting",
            "private_bytes",
            "loader_threads",
            "resident_bytes",
        )
        check_least(self, 0, "num_threads", "speculation", "overlap_from_s", "late_rows", "late_from_s")
        check_least(self, 0, "conversation_bytes", "conversation_tenant_bytes", "conversation_s")
        if not 0 <= self.resident_floor <= 1:  # False for NaN
            raise ValueError(f"resident_floor: must be from 0 to 1, got {self.resident_floor}")
        for name in self.adapters:
            if name == NO_ADAPTER or not re.fullmatch(r"[\w.-]+", name):
                raise ValueError(
                    f"adapters: {name!r} is no name of an adapter; use letters, digits, '.', '_' and '-', "
                    f"and not {NO_ADAPTER!r}, by which requests ask for none"
                )
        if self.compile and self.adapters:
            raise ValueError("compile: compiled layers know no adapters; leave out one")
        if self.weights == "int8" and self.on_gpu:
            raise ValueError("weights: int8 weights are for CPUs; set weights to exact, or device to cpu")
        if self.weights == "int8" and self.compile:
            raise ValueError("weights: compiled layers know no int8 weights; leave out one")
        if self.compile and self.batch_invariant:
            raise ValueError(
                "compile: compiled sums may depend on the rows beside them; leave it out with batch_invariant"
            )
