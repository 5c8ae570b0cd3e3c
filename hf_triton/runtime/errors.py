"""The errors that the runtime answers with, each with the Triton status that it becomes.

RuntimeModelError
├── RequestError           INVALID_ARG, HTTP 400: the caller's input; the text names the field, what
│                          was got and what is allowed
├── OverloadedError        UNAVAILABLE, HTTP 503: the bounded queue is full, the model is being
│                          unloaded, or no engine can answer now: try again later
├── DeadlineError          UNAVAILABLE, HTTP 503: ``timeout_ms`` passed; its caller wanted an error
├── CancelledError         CANCELLED: its caller has gone or has cancelled; nobody reads the text
├── EngineError            INTERNAL, HTTP 500: computing the answer failed
├── DeviceLostError        INTERNAL, HTTP 500: the GPU can't compute any more
├── HookError              INTERNAL, HTTP 500: a hook failed, or made what the model can't take
└── LoadError              the model can't be loaded; the text is the line that an operator reads
"""

from __future__ import annotations

import traceback
from pathlib import Path

NO_NUMBERS = "the model computed a score that is not a number"  # an EngineError's


class RuntimeModelError(Exception):
    """Base of all errors whose text may be shown to a caller or an operator as it stands."""

    status = "INTERNAL"


class RequestError(RuntimeModelError):
    status = "INVALID_ARG"


class OverloadedError(RuntimeModelError):
    status = "UNAVAILABLE"


class DeadlineError(RuntimeModelError):
    status = "UNAVAILABLE"


class CancelledError(RuntimeModelError):
    status = "CANCELLED"


class EngineError(RuntimeModelError):
    """The computation failed; the request was valid."""


class DeviceLostError(RuntimeModelError):
    """A GPU answers everything with an error, until its process ends."""


class HookError(RuntimeModelError):
    """A hook failed; the text names it, and quotes nothing of the request."""


class LoadError(RuntimeModelError):
    """The model can't be served: missing or gated weights, no memory, an unknown architecture."""


def not_as_generated(file: str, wrong: object) -> LoadError:
    """Returns the error of a generated file that can't be read or is of another release."""
    return LoadError(f"{file}: {wrong}; run `hf-triton generate` again")


def reason(error: BaseException, limit: int = 400) -> str:
    """The error's text on one line, cut to ``limit`` characters; the type's name if it is empty."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= limit else line[: limit - 1] + "…"


def place(error: BaseException) -> str:
    """Names an error's type and line, for logs: its text could quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"
