"""``python_env:`` in models.yaml: requirements files, or the folder of an environment. Follows the
files that they name, to tell two environments apart; uv or pip resolves them later.
"""

# os.path rather than pathlib: it never raises, whatever text a path has.
# ruff: noqa: PTH110, PTH111, PTH112, PTH113, PTH118
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from generator.yaml_file.keys import (
    GOT,
    As,
    Before,
    Flag,
    Found,
    Keys,
    Mistake,
    Refused,
    Text,
    refused,
)
from hf_triton.runtime.regular_file import read_regular
from hf_triton.runtime.weights.locked_files import hash_file

_MAX_BYTES = 2**20
_INCLUDES = {
    **dict.fromkeys(("-r", "--requirement"), "requirements"),
    **dict.fromkeys(("-c", "--constraint"), "constraints"),
}
_EDITABLE = ("-e", "--editable")
_COMMENT = re.compile(r"(^|\s)#.*$")
_END_OF_LINE = re.compile(r"(?<!\\)\n")
_OF_REQUIREMENT = re.compile(r"\s--(hash|config-settings|global-option)\b.*$")
_ARCHIVES = (".whl", ".tar.gz", ".zip")

_MAX_MISTAKES = 3  # a file of another kind may have thousands
_FILE = "a requirements file, or the folder of a Python environment"


@dataclass(frozen=True)
class PythonEnv:
    """``folder`` is a finished environment; otherwise ``digest`` stands for all that the
    requirements say, those of ``no_deps`` installed last and alone. ``files`` were read for it.
    """

    written: str
    folder: Path | None = None
    requirements: Path | None = None
    no_deps: Path | None = None
    system_site_packages: bool = False
    digest: str = ""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Written(Keys):
    """The key as it is written; a plain text names a requirements file or a folder."""

    expected: ClassVar[str] = f"{_FILE}, or a map with requirements, no_deps, system_site_packages"
    requirements: Annotated[str, Text("a requirements file")] | None = None
    no_deps: (
        Annotated[str, Text("a requirements file, installed without its packages' dependencies")]
        | None
    ) = None
    system_site_packages: Flag = False

    def mistakes(self) -> Iterator[Mistake]:
        if self.requirements is None and self.no_deps is None:
            yield Mistake("missing key 'requirements': the file that lists what to install")


def _as_map(value: object) -> object:
    if not isinstance(value, str):
        return value
    return {"requirements": Text(_Written.expected).read(value)}


def _find(written: _Written, base: Path) -> PythonEnv:
    """The environment that the key asks for, paths relative to ``base``. Raises Refused."""
    named = {"requirements": written.requirements, "no_deps": written.no_deps}
    paths = {
        key: Path(os.path.normpath(os.path.join(base, os.path.expanduser(value))))
        for key, value in named.items()
        if value is not None
    }
    first = paths.get("requirements")
    if first is not None and len(paths) == 1 and os.path.isdir(first):
        if not os.path.lexists(first / "bin" / "python"):
            reason = f"{first} is not a Python environment: it has no bin/python"
            raise refused(f"but {reason}, expected {_FILE}", GOT)
        return PythonEnv(str(written.requirements), folder=first)
    found = {key: Requirements.read(path) for key, path in paths.items()}
    if mistakes := [one.below((key,)) for key, read in found.items() for one in read.mistakes]:
        raise Refused(*mistakes)
    passes = [key in paths for key in named]
    content = [f"{passes} {written.system_site_packages}"]
    content += [line for read in found.values() for line in read.content]
    return PythonEnv(
        written=" and ".join(value for value in named.values() if value is not None),
        requirements=first,
        no_deps=paths.get("no_deps"),
        system_site_packages=written.system_site_packages,
        digest=hashlib.sha256("\n".join(content).encode()).hexdigest(),
        files=tuple(dict.fromkeys(file for read in found.values() for file in read.files)),
    )


PythonEnvironment = Annotated[
    PythonEnv, As(_Written), Before(_as_map, ({"type": "string"},)), Found(_find)
]


@dataclass
class Requirements:
    """A requirements file and those that it includes. ``content`` differs between environments
    that differ. ``mistakes`` name a file and line, and never quote it: a wrong path may lead to a
    file with secrets.
    """

    content: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Requirements:
        """The file and all that it includes, in pip's order; of its mistakes the first few."""
        found = cls()
        if not os.path.exists(path):
            found.mistakes.append(Mistake(f"but there is no file {path}, expected {_FILE}", GOT))
            return found
        found._read(path, root=path.parent)
        options = ("-", "begin ", "end ")
        if not found.mistakes and all(line.startswith(options) for line in found.content):
            found.mistakes.append(Mistake(f"{path.name} names no package"))
        del found.mistakes[_MAX_MISTAKES:]
        return found

    def _read(self, path: Path, root: Path) -> None:
        if path in self.files:
            return
        self.files.append(path)
        try:
            text = read_regular(path, _MAX_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        except OSError as error:
            self.mistakes.append(Mistake(f"{path}: can't be read: {error.strerror}"))
            return
        if "\0" in text:
            self.mistakes.append(Mistake(f"{path.name} is not UTF-8 text"))
            return
        number = 1
        for lines in _END_OF_LINE.split("\n".join(text.splitlines())):
            parts = (part for part in lines.split("\n") if not part.lstrip().startswith("#"))
            line = _COMMENT.sub("", "".join(part.removesuffix("\\") for part in parts)).strip()
            try:
                problem = self._read_line(line, path, root) if line else ""
            except OSError as error:
                problem = str(error.strerror)
            if problem:
                self.mistakes.append(Mistake(f"{path.name}:{number}: {problem}"))
            number += 1 + lines.count("\n")

    def _read_line(self, line: str, path: Path, root: Path) -> str:
        """Notes one line; returns what is wrong with it."""
        option, _, value = line.replace("=", " ", 1).partition(" ")
        bare = _OF_REQUIREMENT.sub("", line).strip()
        written = bare.partition(";")[0].strip()
        is_path = written.startswith((".", "/")) or written.endswith(_ARCHIVES)
        if option in _INCLUDES:
            included = Path(os.path.realpath(path.parent / value.strip()))
            if not os.path.isfile(included):
                return f"{included}: no such file; only files of this machine can be included"
            self.content.append(f"begin {_INCLUDES[option]}")
            self._read(included, included.parent)
            line = f"end {_INCLUDES[option]}"
        elif option in _EDITABLE:
            return "an editable package can change under its environment: build a wheel of it"
        elif is_path and "://" not in written:
            file = root / written
            if not os.path.isfile(file):
                shown = f"{file.name} is " if file.name.endswith(_ARCHIVES) else ""
                return f"{shown}no such file in {file.parent if shown else 'its folder'}"
            self.files.append(file)
            line = f"{file.name} sha256:{hash_file(file)}"
        elif not line.startswith("-") and (problem := _requirement_problem(bare)):
            return problem
        self.content.append(line)
        return ""


def _requirement_problem(line: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    if "${" in line or ("://" in line and "@" not in line.partition("://")[0]):
        return ""  # a variable of the environment, or an address alone
    try:
        Requirement(line)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        return f"is not a requirement{f': {reason}' if reason.startswith('Expected ') else ''}"
    return ""
