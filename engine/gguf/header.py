"""A GGUF file's metadata and table of tensors, read without torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

from tandem.engine.models.model_folder import UnsupportedModel

VERSIONS = (2, 3)
"""Versions of the format; no file in use has the first."""
ALIGNMENT = 32
"""Bytes to which the tensors' data is aligned unless the file says otherwise."""
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` by type of value."""
STRING, ARRAY = 8, 9
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Name, elements of a block and bytes of a block by ggml's type of tensor: `GGML_QUANT_SIZES` of gguf-py."""

FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"},
}
"""Names by `general.file_type`: `LlamaFileType` of gguf-py."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """name: llama.cpp's.
    shape: fastest dimension first.
    kind: ggml's type.
    offset: of its data, bytes from the beginning of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def size(self) -> int:
        """Bytes of its data; 0 for a type that is not in TENSOR_TYPES."""
        _, elements, size = TENSOR_TYPES.get(self.kind, ("", 1, 0))
        return prod(self.shape) // elements * size


@dataclass(frozen=True, slots=True)
class Header:
    """metadata: values by key, such as "general.architecture".
    tensors: in the file's order.
    """

    metadata: dict[str, Any]
    tensors: list[Tensor]

    @property
    def architecture(self) -> str:
        """llama.cpp's name, such as "qwen2"."""
        return str(self.metadata["general.architecture"])

    @property
    def quantization(self) -> str:
        """Name of the file's mix of types, such as "Q4_K_M"; "?" for one that is not in FILE_TYPES."""
        return FILE_TYPES.get(self.metadata.get("general.file_type", -1), "?")


def read_header(file: Path) -> Header:
    """Read and check a GGUF file; takes tenths of a second.

    Raise FileNotFoundError, and UnsupportedModel if it is none, or cut off.
    """
    with file.open("rb") as source:
        magic = source.read(4)
        if magic != b"GGUF":
            raise UnsupportedModel(f"{file} is no GGUF file: it begins with {magic!r}")
        try:
            header = _Reader(source).header(file)
        except (struct.error, UnicodeDecodeError, MemoryError, OverflowError):
            raise UnsupportedModel(f"{file} is cut off or damaged: fetch it again") from None
    if not header.tensors:
        raise UnsupportedModel(f"{file} holds no weights, only a vocabulary")
    size, needed = file.stat().st_size, max(tensor.offset + tensor.size for tensor in header.tensors)
    if size < needed:
        raise UnsupportedModel(
            f"{file} is cut off: {size:,} bytes are there of {needed:,}; fetch it again, or let the download finish"
        )
    return header


class _Reader:
    """Reads values one after the other, little-endian."""

    def __init__(self, source: BufferedReader) -> None:
        self._source = source

    def header(self, file: Path) -> Header:
        version, tensors, keys = self._numbers("IQQ")
        if version not in VERSIONS:
            raise UnsupportedModel(
                f"{file} is GGUF of version {version}; versions {' and '.join(map(str, VERSIONS))} can be read"
            )
        metadata = {self._string(): self._value(*self._numbers("I")) for _ in range(keys)}
        if "general.architecture" not in metadata:
            raise UnsupportedModel(f"{file} does not name its architecture")
        table = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        start = -(-self._source.tell() // alignment) * alignment
        return Header(metadata, [Tensor(name, shape, kind, start + at) for name, shape, kind, at in table])

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dimensions,) = self._numbers("I")
        shape = self._numbers(f"{dimensions}Q")
        kind, offset = self._numbers("IQ")
        return name, shape, kind, offset

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._numbers(_scalar(kind))[0]
        kind, length = self._numbers("IQ")
        if kind in (STRING, ARRAY):
            return [self._value(kind) for _ in range(length)]
        return list(self._numbers(f"{length}{_scalar(kind)}"))

    def _string(self) -> str:
        (length,) = self._numbers("Q")
        return self._bytes(length).decode()

    def _numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))

    def _bytes(self, length: int) -> bytes:
        data = self._source.read(length)
        if len(data) < length:
            raise struct.error
        return data


def _scalar(kind: int) -> str:
    if kind not in SCALARS:
        raise struct.error
    return SCALARS[kind]
