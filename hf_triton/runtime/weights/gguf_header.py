"""Reads the head of a .gguf file, and refuses by name what transformers can't make a model of.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows neither files nor the
Hub: it is given a function that reads on, so that weights need not be here. Imports nothing of the
runtime, so that the generator can use it without torch or transformers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from .hub_files import NotServableError

Read: TypeAlias = Callable[[int], bytes]
"""As ``read`` of a file: the next bytes, fewer at its end."""

# As llama.cpp names the decoders of transformers/modeling_gguf_pytorch_utils.py, and those that
# transformers/integrations/gguf reads itself.
_OWN_READER = ("lfm2", "qwen35", "qwen35moe")
ARCHITECTURES = frozenset(
    (
        *("bloom", "falcon", "gemma2", "gemma3", "gemma4", "gpt-oss", "gpt2", "llama", "mamba"),
        *("minimax-m2", "nemotron", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "stablelm"),
        *("starcoder2", *_OWN_READER),
    )
)
# Types of tensors that transformers turns into numbers, and all of ggml's by their numbers.
_OF_ALL = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16")
OWN_READERS_TYPES = frozenset(
    (
        *(*_OF_ALL, "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"),
        "IQ1_M",
    )
)
TYPES = OWN_READERS_TYPES | {"Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"}
_LATER = ("IQ1_M", "BF16", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0")
NAMES = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"), 6)),
    **dict(enumerate(("Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL"), 14)),
    **dict(enumerate(("IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64"), 21)),
    **dict(zip((29, 30, 34, 35, 39, 40, 41), _LATER, strict=True)),
}
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_MOST_BYTES = 2**26  # vocabularies of 260,000 words take 20 MB
_DIMENSIONS = 4


class _Head:
    """The bytes of a head in their order."""

    def __init__(self, read: Read) -> None:
        self._read, self._left = read, _MOST_BYTES

    def bytes(self, count: int) -> bytes:
        """Raises NotServableError at the file's end, and far behind where a head ends."""
        self._left -= count
        if self._left < 0:
            raise NotServableError(f"is no model: its head has more than {_MOST_BYTES} bytes")
        found = self._read(count)
        if len(found) < count:
            raise NotServableError("is no whole GGUF file: it ends within its head")
        return found

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))

    def length(self) -> int:
        return int.from_bytes(self.bytes(8), "little")

    def text(self) -> str:
        return self.bytes(self.length()).decode("utf-8", "replace")

    def value(self, kind: int) -> object:
        """A value of the metadata; None for an array, which is passed over."""
        if kind in _FORMS:
            return self.numbers(_FORMS[kind])[0]
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            self._pass_array(*self.numbers("IQ"))
            return None
        raise NotServableError(f"is no GGUF file: its metadata has a value of type {kind}")

    def _pass_array(self, kind: int, count: int) -> None:
        if kind in _FORMS:
            self.bytes(count * struct.calcsize(f"<{_FORMS[kind]}"))
            return
        if kind != _TEXT:  # arrays of arrays are in no file that transformers reads
            raise NotServableError(f"is no GGUF file: its metadata has an array of type {kind}")
        for _ in range(count):
            self.bytes(self.length())

    def tensor_type(self) -> int:
        """The type of the next tensor in the table of tensors."""
        self.text()
        (dimensions,) = self.numbers("I")
        if dimensions > _DIMENSIONS:
            raise NotServableError(f"is no GGUF file: a tensor of it has {dimensions} dimensions")
        return self.numbers(f"{dimensions}QIQ")[-2]


def check_gguf(read: Read) -> None:
    """Reads a head, up to the table of tensors' end.

    Raises:
        NotServableError: it is no GGUF file, part of one, or of an architecture or with types of
            tensors that transformers does not read.
    """
    head = _Head(read)
    if head.bytes(4) != b"GGUF":
        raise NotServableError("is no GGUF file")
    version, num_tensors, num_values = head.numbers("IQQ")
    if version not in (2, 3):
        raise NotServableError(f"is GGUF of version {version}, expected 2 or 3")
    metadata = {}
    for _ in range(num_values):
        name = head.text()
        metadata[name] = head.value(*head.numbers("I"))
    architecture = str(metadata.get("general.architecture"))
    _check(architecture, metadata.get("split.count"))
    types = {head.tensor_type() for _ in range(num_tensors)}
    readable = OWN_READERS_TYPES if architecture in _OWN_READER else TYPES
    unknown = sorted({NAMES.get(one, f"type {one}") for one in types} - readable)
    if unknown:
        raise NotServableError(
            f"has weights as {', '.join(unknown)}, which transformers does not read of "
            f"{architecture}, expected {_listed(readable)}"
        )


def _check(architecture: str, num_parts: object) -> None:
    if isinstance(num_parts, int) and num_parts > 1:
        raise NotServableError(
            f"is one of {num_parts} parts, and transformers reads whole files: join them with "
            "llama-gguf-split --merge"
        )
    if architecture not in ARCHITECTURES:
        raise NotServableError(
            f"is a model of the architecture {architecture[:64]!r}, which transformers does not "
            f"read from GGUF, expected {_listed(ARCHITECTURES)}: set model to the one that it was "
            "made of, with config.json and *.safetensors"
        )


def _listed(names: Collection[str]) -> str:
    return f"one of {', '.join(sorted(names))}"


def read_on(blocks: Iterable[bytes]) -> Read:
    """``read`` of what comes in blocks."""
    coming, held, at = iter(blocks), bytearray(), 0

    def read(count: int) -> bytes:
        nonlocal at
        while len(held) - at < count and (block := next(coming, None)) is not None:
            del held[:at]
            at = 0
            held.extend(block)
        found = bytes(held[at : at + count])
        at += len(found)
        return found

    return read
