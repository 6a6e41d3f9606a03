"""Makes the backend that computes a step's attention, by name. Triton and flash_attn are imported only when
they are asked for.

| name | where | what |
| --- | --- | --- |
| ``native`` | CPU with AVX2 | one call of the C kernels per layer for the whole step |
| ``torch`` | any device | one kernel call per segment: the fused CPU kernel, elsewhere plain float32 matmuls
  |
| ``triton`` | GPU | three launches per layer for the whole step |
| ``flash_attn`` | GPU, the extra ``gpu`` | one call of that library per segment; for ordinary dense prefill |
| ``reference`` | any device | the rule of sight as it is written down, row by row: the slow twin of all
  others |

``auto`` is ``triton`` on a GPU and ``native`` on a CPU where they work, else ``torch``.
"""

from __future__ import annotations

import importlib.util
import logging

from shared.engine.attention import Backend
from shared.engine.backends.check import BackendBroken, check_backend
from shared.engine.backends.flash import flash_kernel
from shared.engine.backends.kernels import fused_cpu_kernel, matmul_kernel
from shared.engine.backends.native import NativeBackend
from shared.engine.backends.piecewise import PiecewiseBackend
from shared.engine.backends.reference import ReferenceBackend
from shared.engine.backends.tables import FIXED
from shared.engine.model.spec import ModelSpec
from shared.engine_config import EngineConfig
from shared.errors import ConfigError

log = logging.getLogger(__name__)


def backend_for(config: EngineConfig, spec: ModelSpec) -> Backend:
    """The backend that ``config`` names, tried on a small step if it compiles or imports anything of its own.

    Raises:
        ConfigError: it cannot work here; the detail says why and what would.
    """
    if config.backend != "auto":
        return _tried(config.backend, config, spec)
    try:
        return _tried("triton" if spec.device.type == "cuda" else "native", config, spec)
    except ConfigError as error:
        log.warning("backend auto: %s; torch serves in its place, slower", error.detail)
        return _made("torch", config, spec)


def _tried(name: str, config: EngineConfig, spec: ModelSpec) -> Backend:
    backend = _made(name, config, spec)
    if name in ("native", "triton", "flash_attn"):
        try:
            check_backend(backend, spec)
        except BackendBroken as error:
            raise ConfigError(
                f"engine.backend: {name!r} does not work on this machine ({error}); set it to 'torch'"
            ) from error
    return backend


def _made(name: str, config: EngineConfig, spec: ModelSpec) -> Backend:
    tiling = FIXED if config.batch_invariant else None
    match name:
        case "native":
            return NativeBackend(spec, tiling)
        case "reference":
            return ReferenceBackend(spec)
        case "flash_attn":
            return PiecewiseBackend(spec, flash_kernel(spec))
        case "triton":
            if importlib.util.find_spec("triton") is None:
                raise ConfigError(
                    "engine.backend: 'triton' is not installed here (pip install triton); or set it to "
                    "'torch'"
                )
            from shared.engine.backends.triton import TritonBackend

            return TritonBackend(spec, tiling)
        case _:
            return PiecewiseBackend(spec, fused_cpu_kernel if spec.device.type == "cpu" else matmul_kernel)
