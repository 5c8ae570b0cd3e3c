"""A served model's requests and responses, whichever way they travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Value = str | int | float | bool


@dataclass(frozen=True)
class Request:
    """Tensors and parameters by name; ``outputs`` empty asks for whatever the model sends."""

    tensors: Mapping[str, Array] = field(default_factory=dict)
    parameters: Mapping[str, Value] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """An HTTP status, and either an error's text or output arrays by name."""

    status: int
    error: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == 200

    def texts(self, name: str = "text_output") -> list[str]:
        """All elements of a text output."""
        return [value.decode() for value in self.outputs[name].flatten().tolist()]

    def text(self) -> str:
        """The one element of ``text_output``."""
        (text,) = self.texts()
        return text

    def number(self, name: str) -> int:
        """The one element of an integer output."""
        (value,) = self.numbers(name)
        return int(value)

    def numbers(self, name: str) -> list[float]:
        """All elements of a number output."""
        values: list[float] = self.outputs[name].flatten().tolist()
        return values


def strings(*values: str | bytes) -> Array:
    """A text tensor of shape (len(values),)."""
    return np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=np.object_)
