"""Runs the functions of a hooks file, or the methods of a model.py; what they raise becomes an
error of that request.

Knows neither threads nor how responses are sent.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hf_triton import hooks, runtime
from hf_triton.hooks import HookTensors

from .. import log
from ..errors import HookError, LoadError, RuntimeModelError, reason
from ..metrics.observations import Observations
from ..request.request_ids import labelled

NAMES = ("preprocess", "postprocess")
Functions = Mapping[str, Callable[[Any], Any]]
# The name that older hooks files import.
_EARLIER_NAME = "hf_runtime"


def functions_of(holder: object) -> Functions:
    """Those of ``preprocess`` and ``postprocess`` that a module or an object defines."""
    found = {wanted: getattr(holder, wanted, None) for wanted in NAMES}
    return {wanted: function for wanted, function in found.items() if callable(function)}


class HookFile:
    """A loaded hooks file. ``name`` is its path as models.yaml gives it, for errors."""

    def __init__(
        self,
        path: Path,
        name: str,
        observations: Observations,
        *,
        model: str = "",
        functions: Functions | None = None,
    ) -> None:
        """``functions`` are those of the file, where it has been loaded already. Raises LoadError
        with one line that names the file and its line.
        """
        self.name = name
        self.observations = observations
        self._path = str(path)
        self._log_prefix = f"{model}: " if model else ""
        self._functions = functions or functions_of(self._load_module(path))
        if not self._functions:
            raise LoadError(f"hooks: {name} has neither preprocess nor postprocess")

    def defines(self, function: str) -> bool:
        return function in self._functions

    def run(self, function: str, subject: HookTensors, *, request_id: str = "") -> None:
        """Runs a function of the file, if it is defined, on a request or a response, which it
        changes in place; ``request_id`` is for the log.

        Raises:
            RuntimeModelError: the error for the caller. The log gets the line in the hooks file,
                and not the error's text, which may quote a prompt.
        """
        if function not in self._functions:
            return
        try:
            with self.observations.active():
                returned = self._functions[function](subject)
            self._apply_result(returned, subject, function)
            subject.check()
        except HookError as error:
            message = f"{self._location(error)}: {function}: {error}"
            log.error(self._log_prefix + labelled(request_id, message))
            raise HookError(message) from None
        except RuntimeModelError:
            raise
        except BaseException as error:
            # SystemExit too: it would end the thread silently, and the caller would wait for ever.
            message = f"{self._location(error)}: {function} raised {type(error).__name__}"
            log.error(self._log_prefix + labelled(request_id, message))
            raise HookError(message) from error

    def _apply_result(self, returned: object, subject: HookTensors, function: str) -> None:
        if returned is None or returned is subject:
            return
        if not isinstance(returned, Mapping):
            got = type(returned).__name__
            raise HookError(f"returned {got}, allowed: None or a dict of tensors")
        subject.replace(dict(returned))

    def _load_module(self, path: Path) -> types.ModuleType:
        module = types.ModuleType(f"hf_triton_hooks_{abs(hash(self._path))}")
        module.__file__ = self._path
        sys.modules[module.__name__] = module  # dataclasses and pickle look it up there
        sys.modules.setdefault(_EARLIER_NAME, runtime)
        sys.modules.setdefault(f"{_EARLIER_NAME}.hooks", hooks)
        try:
            code = compile(path.read_bytes(), self._path, "exec", dont_inherit=True)
            exec(code, module.__dict__)  # noqa: S102, the user's own file is what is served
        except BaseException as error:
            kind = type(error).__name__
            line = f"hooks: {self._location(error)}: {kind}: {reason(error)}"
            raise LoadError(line) from error
        return module

    def _location(self, error: BaseException) -> str:
        """``my_hooks.py:12``: the innermost line of the hooks file in the error's traceback."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == self._path]
        if isinstance(error, SyntaxError) and error.filename == self._path:
            lines.append(error.lineno)
        return f"{self.name}:{lines[-1]}" if lines else self.name
