"""Hooks files import from here: ``from hf_triton.hooks import HookRequest, RequestError, observe``.

A hooks file is plain Python with one or both of these functions. The model runs them for every
request and for every response (of a stream: for every chunk)::

    def preprocess(request: HookRequest) -> None:
        text = request.text("text_input")        # of a tensor or a request parameter
        request["text_input"] = text.strip()     # put into the declared type and shape
        observe("input_length", len(text))       # a metric that models.yaml declares

    def postprocess(response: HookResponse) -> None:
        observe("answers", label=response.text("label"))

Both may instead return a dict of tensors, which replaces all tensors. A RequestError answers the
caller with 400 and its text, any other exception with 500 and the exception's type alone.
Hooks run on several threads at once: what they share needs a lock.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

from .runtime.errors import HookError, OverloadedError, RequestError
from .runtime.metrics.observations import observe
from .runtime.request.declared_tensor import Array, DeclaredTensor
from .runtime.request.tensors import text

__all__ = ["HookRequest", "HookResponse", "OverloadedError", "RequestError", "observe"]


class HookTensors(UserDict[str, Any]):
    """Tensors by name, as numpy arrays; texts are arrays of bytes, which ``text`` decodes.

    A shape is (rows, *dims) with max_batch_size above 0, else (*dims,). A value that is set may be
    an array, one value, or a flat list: it is converted to the declared type and shape; a HookError
    says where it does not fit.
    """

    kind = "tensor"
    __repr__ = object.__repr__  # texts of callers stay out of logs

    def __init__(
        self,
        tensors: Mapping[str, Array],
        declared: Mapping[str, DeclaredTensor],
        num_rows: int | None,
    ) -> None:
        """``num_rows`` is the size of the batch dimension, None where the model has none."""
        self.num_rows = num_rows
        self.data = dict(tensors)
        self._shapes = {name: array.shape for name, array in tensors.items()}
        self._declared = declared

    def __setitem__(self, name: str, value: Any) -> None:
        declared = self._declared.get(name)
        if declared is None:
            known = ", ".join(self._declared)
            raise HookError(f"{self.kind} {name!r} is not declared; this model has {known}")
        try:
            array = declared.array(value, self.num_rows, self._shapes.get(name))
        except ValueError as error:
            raise HookError(f"{self.kind} {name!r}: {error}") from None
        self.data[name] = array

    def texts(self, name: str) -> list[str]:
        """All texts of a tensor, none if it is not there. Raises RequestError for invalid UTF-8."""
        return [text(name, value) for value in self._values(name)]

    def text(self, name: str, default: str | None = None) -> str:
        """The first text of a tensor. If there is none: ``default``, or an error without one."""
        values = self._values(name)
        if values:
            return text(name, values[0])
        if default is None:
            raise self._missing(name)
        return default

    def replace(self, tensors: Mapping[str, Any]) -> None:
        """Replaces all tensors by these."""
        self.data.clear()
        self.update(tensors)

    def check(self) -> None:
        """Raises HookError if an array was changed in place to what is not declared."""
        for name, array in self.data.items():
            HookTensors.__setitem__(self, name, array)

    def _values(self, name: str) -> list[Any]:
        array = self.data.get(name)
        values: list[Any] = [] if array is None else array.reshape(-1).tolist()
        return values

    def _missing(self, name: str) -> Exception:
        return HookError(f"{self.kind} {name!r} is missing")


class HookRequest(HookTensors):
    """One request's input tensors and its ``parameters``; a name is in one of the two.

    ``outputs`` are the outputs that the caller asked for: all of the model's if it named none.
    ``state`` belongs to the hooks: what ``preprocess`` puts there, ``postprocess`` finds in
    ``response.request.state``.
    """

    kind = "input"

    def __init__(
        self,
        tensors: Mapping[str, Array],
        declared: Mapping[str, DeclaredTensor],
        num_rows: int | None,
        *,
        parameters: Mapping[str, Any],
        outputs: tuple[str, ...],
    ) -> None:
        super().__init__(tensors, declared, num_rows)
        self.parameters = dict(parameters)
        self.outputs = outputs
        self.state: dict[str, Any] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.parameters.pop(name, None)  # a value as tensor and as parameter would be an error

    def check(self) -> None:
        super().check()
        for name, value in self.parameters.items():
            if not isinstance(value, str | int | float | bool):
                allowed = "a text, a number, true or false"
                raise HookError(
                    f"parameter {name!r}: got {type(value).__name__}, allowed: {allowed}"
                )

    def _values(self, name: str) -> list[Any]:
        if name not in self and name in self.parameters:
            return [self.parameters[name]]
        return super()._values(name)

    def _missing(self, name: str) -> Exception:
        return RequestError(f"{name}: missing, a text is required")


class HookResponse(HookTensors):
    """One response's output tensors. ``request`` is the request as ``preprocess`` left it;
    ``is_final`` is False for all chunks of a stream but the last.
    """

    kind = "output"

    def __init__(
        self,
        tensors: Mapping[str, Array],
        declared: Mapping[str, DeclaredTensor],
        request: HookRequest,
        *,
        is_final: bool,
    ) -> None:
        super().__init__(tensors, declared, request.num_rows)
        self.request = request
        self.is_final = is_final
