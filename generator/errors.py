"""Every error that the generator raises on purpose, and the exit code each one ends in.

::

    GeneratorError
    ├── UsageError          2  the command line asks for something that makes no sense
    ├── SpecError           1  models.yaml: every mistake in it, each with its place
    ├── RepositoryError     1  the model repository can't be read or written as asked
    ├── ConflictError       1  generated files were edited by hand
    ├── FetchError          1  weights could not be fetched, or differ from models.lock
    ├── ModelError          1  the model that the command line names is missing or unsuitable
    ├── PerfError           1  a measurement or its result is not possible as asked
    ├── NoRoomError         1  two copies of a model do not fit, and no gap is allowed
    ├── ServerError         1  tritonserver is missing, did not start, or a model failed to load
    └── TemplateError       3  a task folder of ours is broken: its options, template or config

Anything else that escapes is a bug of ours and ends in 3 as well; an interrupt ends in 130.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_OK = 0
EXIT_INPUT = 1
EXIT_USAGE = 2
EXIT_BUG = 3
EXIT_INTERRUPTED = 130

_MOST_SHOWN = 100  # of the mistakes of one file
# Hugging Face user tokens (hf_ and 34 letters) and organisation tokens (api_org_ and 34 letters).
_TOKEN = re.compile(r"(hf|api_org)_[A-Za-z0-9]{30,}")
_PERHAPS_TOKEN = re.compile(r"(?<![A-Za-z0-9])(hf|api_org)_[A-Za-z0-9][A-Za-z0-9_.\-]{7,}")
# In an address, which has one slash where it was taken for a path.
_CREDENTIALS = re.compile(r"(:/{1,2})[^/\s]+@")


def looks_like_token(text: str) -> bool:
    return _TOKEN.search(text) is not None


def mask_tokens(text: str) -> str:
    """Replaces what may be a Hugging Face token by ``hf_***``, and users and passwords in
    addresses.
    """
    text = _CREDENTIALS.sub(r"\1***@", text)
    return _PERHAPS_TOKEN.sub(lambda match: f"{match[1]}_***", text)


class GeneratorError(Exception):
    """The root: its text is for the user, complete without a traceback."""

    exit_code = EXIT_INPUT


class UsageError(GeneratorError):
    exit_code = EXIT_USAGE


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake in a YAML file; ``line`` and ``column`` count from 1, 0 where there is none."""

    line: int
    column: int
    where: str
    message: str

    def text(self, file: str) -> str:
        """One line, such as ``models.yaml:5:9: models[0].dtype: got 'fp61', expected ...``."""
        place = f"{file}:{self.line}:{self.column}" if self.line else file
        said = (mask_tokens(self.where), mask_tokens(self.message))
        return ": ".join(part for part in (place, *said) if part)


class SpecError(GeneratorError):
    """Every mistake found in one models.yaml, in the file's order."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = sorted(set(problems))
        lines = [problem.text(file) for problem in self.problems[:_MOST_SHOWN]]
        if len(self.problems) > _MOST_SHOWN:
            lines.append(f"{file}: and {len(self.problems) - _MOST_SHOWN} more")
        super().__init__("\n".join(lines))


class RepositoryError(GeneratorError):
    """The model repository can't be read or written as asked."""


class ConflictError(GeneratorError):
    """Files edited by hand stand where generated ones belong."""


class ModelError(GeneratorError):
    """The model that the command line names is not there, or can't be used so."""


class FetchError(GeneratorError):
    """Weights could not be had from the Hub, or are not what was locked."""


class PerfError(GeneratorError):
    """A measurement, or the result of one, can't be had as asked."""


class ServerError(GeneratorError):
    """tritonserver is missing, did not start, or a model failed to load."""


class NoRoomError(GeneratorError):
    """A model can't be replaced while it answers: memory does not hold two copies of it."""


class TemplateError(GeneratorError):
    exit_code = EXIT_BUG


def error_text(error: GeneratorError) -> str:
    if isinstance(error, SpecError):
        count = len(error.problems)
        return f"{count} mistake{'s' * (count != 1)} in {error.file}\n{error}"
    return str(error)
