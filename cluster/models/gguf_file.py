"""Reads a GGUF file: what it says of its model, and its weights, some rows at a time.

GGUF is llama.cpp's format: typed metadata (``general.architecture``, settings under the architecture's name,
the tokenizer under ``tokenizer.``), then tensors, mostly in blocks of quantised values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray

from shared.errors import ConfigError, ModelUnsupported

MAGIC = b"GGUF"
_ROWS_AT_ONCE = 1 << 22  # values that are dequantised together: 16 MB of float32
# what the reader raises for a file that ends early or holds something else
_UNREADABLE = (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """``shape``: as in torch, rows first."""

    name: str
    shape: tuple[int, ...]
    quantisation: GGMLQuantizationType
    _data: NDArray[Any]

    @property
    def num_values(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """Its values in order, dequantised, a few megabytes at a time; flat."""
        rows = self._data.reshape(-1, self._data.shape[-1])
        step = max(1, _ROWS_AT_ONCE // self.shape[-1])
        for start in range(0, len(rows), step):
            yield dequantize(rows[start : start + step], self.quantisation).reshape(-1)

    def values(self) -> NDArray[np.float32]:
        return np.concatenate(list(self.pieces())).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    architecture: str
    tensors: Mapping[str, GgufTensor]
    _fields: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """
        Raises:
            ConfigError: it cannot be read, is no GGUF, is truncated, damaged or one of several parts.
            ModelUnsupported: tensors are quantised in a way that cannot be undone here.
        """
        where = f"model: {path}"
        try:
            with open(path, "rb") as file:
                magic = file.read(len(MAGIC))
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror}") from error
        if magic != MAGIC:
            raise ConfigError(f"{where} is not a GGUF file; give one, or a model directory")
        with readable(path):
            reader = GGUFReader(path)
            _check_whole(path, reader)
            architecture = str(reader.fields["general.architecture"].contents())
        for tensor in reader.tensors:
            _check_quantisation(path, tensor)
        return cls(path, architecture, {t.name: _tensor(t) for t in reader.tensors}, reader.fields)

    def value(self, key: str, default: Any = None) -> Any:
        """Of the metadata; plain Python values, lists of them for arrays."""
        field = self._fields.get(key)
        with readable(self.path):
            return default if field is None else field.contents()

    def setting(self, name: str, default: Any = None) -> Any:
        """The architecture's own setting."""
        return self.value(f"{self.architecture}.{name}", default)

    def count(self, name: str) -> int:
        """A setting that every model has.

        Raises:
            ConfigError: it is missing.
            ModelUnsupported: it differs from layer to layer.
        """
        value = self.setting(name)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ModelUnsupported(
                    f"model: {self.path}: {self.architecture}.{name} differs from layer to layer, which "
                    "the engine does not compute"
                )
            value = value[0]
        if not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"model: {self.path} lacks {self.architecture}.{name}; it is damaged, or no language model"
            )
        return value


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns what reading a file raises that is not what it should be into our errors.

    Raises:
        ConfigError: it ends early, holds something else than a GGUF file should, or is of another version.
        ModelUnsupported: a quantisation that nobody knows here.
    """
    try:
        yield
    except _UNREADABLE as error:
        if unknown := re.search(r"(\d+)\)? is not a valid GGMLQuantizationType", str(error)):
            raise _cannot_dequantise(path, f"type {unknown[1]}", "") from error
        if "appears to be version" in str(error):
            raise ConfigError(f"model: {path} is of a GGUF version that is not read here: {error}") from error
        raise ConfigError(
            f"model: {path} is truncated or damaged ({error}); download it again, and compare its size"
        ) from error


def _check_whole(path: Path, reader: GGUFReader) -> None:
    """Large models are split; all parts but the first say nothing of the model.

    Raises:
        ConfigError: it is a part; says how the whole is made.
    """
    count, number = (
        int(reader.fields[name].contents()) if name in reader.fields else 0
        for name in ("split.count", "split.no")
    )
    if count > 1:
        raise ConfigError(
            f"model: {path} is part {number + 1} of {count} of a model; put them together by llama.cpp's "
            "`llama-gguf-split --merge FIRST-PART WHOLE.gguf`, and give the whole file"
        )


def _tensor(tensor: ReaderTensor) -> GgufTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
    return GgufTensor(tensor.name, shape, tensor.tensor_type, tensor.data)


def _check_quantisation(path: Path, tensor: ReaderTensor) -> None:
    """Tries one block."""
    kind = tensor.tensor_type
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError as error:
        raise _cannot_dequantise(path, kind.name, f" ({tensor.name})") from error


def _cannot_dequantise(path: Path, kind: str, where: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"model: {path}{where} is quantised as {kind}, which cannot be undone here; take another file of the "
        "model, such as Q8_0, Q4_K_M or BF16"
    )
