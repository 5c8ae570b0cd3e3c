"""``python_env:`` in models.yaml: requirements files, or the folder of an environment.

Looks at files, runs nothing.
"""

# os.path rather than pathlib: it never raises, whatever stands there.
# ruff: noqa: PTH110, PTH111, PTH112, PTH118
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from generator.spec.model_spec import PythonEnv
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.regular_file import read_regular
from generator.yaml_file.schema import Report, show

_MAX_BYTES = 2**20
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")
_PLAIN = (
    *("-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--pre"),
    *("--no-binary", "--only-binary", "--prefer-binary", "--require-hashes", "--trusted-host"),
)
_EDITABLE = ("-e", "--editable")
_COMMENT = re.compile(r"(^|\s)#.*$")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\s*(\[|[<>=!~;@(]|$)")
_OF_REQUIREMENT = re.compile(r"\s--(hash|config-settings|global-option)\b.*$")
_OPTION = re.compile(r"--?[a-z][a-z-]{0,30}")
_ARCHIVES = (".whl", ".tar.gz", ".zip")

_MAX_PROBLEMS = 3  # of a file that is none there may be thousands
_FILE = "a requirements file, or the folder of a Python environment"
_EXPECTED = f"{_FILE}, or a map with requirements, no_deps, system_site_packages"
_KEYS = {
    "requirements": schema.text("a requirements file"),
    "no_deps": schema.text("a requirements file, installed without what its packages ask for"),
    "system_site_packages": schema.boolean,
}


def check(node: Node, report: Report) -> Node | None:
    """The key's form; the files that it names are looked at once a model takes it."""
    if node.value is None:
        return None
    if isinstance(node.value, dict):
        schema.mapping(_KEYS, _EXPECTED)(node, report)
        if node.get("requirements") is None and node.get("no_deps") is None:
            report.add(node, "missing key 'requirements': the file with what is to be installed")
    elif not isinstance(node.value, str) or not node.value:
        report.expected(node, _EXPECTED)
    else:
        schema.text(_EXPECTED)(node, report)
    return node


def find_python_env(node: Node, base: Path, report: Report) -> PythonEnv | None:
    """The environment that the key asks for, paths relative to ``base``; reports every mistake."""
    before = len(report.problems)
    if isinstance(node.value, dict):
        found = _from_map(node, base, report)
    elif isinstance(node.value, str):
        found = _from_text(node, base, report)
    else:
        found = None
    return found if len(report.problems) == before else None


def _from_text(node: Node, base: Path, report: Report) -> PythonEnv | None:
    written = str(node.value)
    path = _path(written, base)
    if not os.path.isdir(path):
        return _of_requirements(base, report, requirements=node)
    if not os.path.lexists(path / "bin" / "python"):
        reason = f"{path} is no Python environment: it has no bin/python"
        report.add(node, f"got {show(node)}, but {reason}, expected {_FILE}")
        return None
    return PythonEnv(written, folder=path)


def _from_map(node: Node, base: Path, report: Report) -> PythonEnv | None:
    below = node.get("system_site_packages")
    return _of_requirements(
        base,
        report,
        requirements=node.get("requirements"),
        no_deps=node.get("no_deps"),
        below=below is not None and below.value is True,
    )


def _of_requirements(
    base: Path,
    report: Report,
    *,
    requirements: Node | None,
    no_deps: Node | None = None,
    below: bool = False,
) -> PythonEnv | None:
    parts = [_read(node, base, report) for node in (requirements, no_deps) if node is not None]
    found = [part for part in parts if part is not None]
    if not parts or len(found) < len(parts):
        return None
    passes = [bool(node) for node in (requirements, no_deps)]
    content = [f"{passes} {below}", *(line for part in found for line in part.content)]
    first = _path(str(requirements.value), base) if requirements else None
    second = _path(str(no_deps.value), base) if no_deps else None
    names = [str(node.value) for node in (requirements, no_deps) if node is not None]
    return PythonEnv(
        written=" and ".join(names),
        requirements=first,
        no_deps=second,
        system_site_packages=below,
        digest=hashlib.sha256("\n".join(content).encode()).hexdigest(),
        files=tuple(dict.fromkeys(file for part in found for file in part.files)),
    )


def _read(node: Node, base: Path, report: Report) -> Requirements | None:
    if not isinstance(node.value, str):
        return None  # told of already
    path = _path(node.value, base)
    if not os.path.exists(path):
        report.add(node, f"got {show(node)}, but {path} is no such file, expected {_FILE}")
        return None
    found = Requirements.read(path)
    for problem in found.problems[:_MAX_PROBLEMS]:
        report.add(node, problem)
    return None if found.problems else found


def _path(written: str, base: Path) -> Path:
    return Path(os.path.normpath(os.path.join(base, os.path.expanduser(written))))


@dataclass
class Requirements:
    """``content`` tells two environments apart: each line that counts, a hash for each local wheel;
    ``files`` were read for it; ``problems`` name their file and line.

    No message quotes a line: a path that was meant otherwise may lead to a file of secrets. Knows
    pip's format (https://pip.pypa.io/en/stable/reference/requirements-file-format/) as far as to
    find mistakes before anything is downloaded, and to tell two files that differ.
    """

    content: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Requirements:
        """The file and all that it includes, in pip's order."""
        found = cls()
        found._read(path, root=path.parent)
        if not found.problems and not any(map(_is_package, found.content)):
            found.problems.append(f"{path.name} names no package")
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
            self.problems.append(f"{path}: can't be read: {error.strerror}")
            return
        if "\0" in text:
            self.problems.append(f"{path.name} is no text in UTF-8")
            return
        for number, line in _lines(text):
            try:
                problem = self._take(line, path, root)
            except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, until 3.12
                problem = getattr(error, "strerror", None) or "a loop of symbolic links"
            if problem:
                self.problems.append(f"{path.name}:{number}: {problem}")

    def _take(self, line: str, path: Path, root: Path) -> str:
        """Notes one line; what is wrong with it, if anything."""
        option, _, value = line.replace("=", " ", 1).partition(" ")
        if line.startswith("-") and option in _INCLUDES:
            return self._include(option, value.strip(), path, root)
        if option in _EDITABLE:
            return "an editable package can change under its environment: build a wheel of it"
        if line.startswith("-"):
            self.content.append(line)
            shown = option if _OPTION.fullmatch(option) else "what begins with -"
            return "" if option in _PLAIN else f"{shown} is no option of a requirements file"
        return self._package(line, root)

    def _include(self, option: str, value: str, path: Path, root: Path) -> str:
        if not value:
            return f"{option} needs a file"
        if "://" in value:
            return f"{option} of a URL: what is there can change; put the file beside this one"
        included = (path.parent / value).resolve()
        if not included.is_file():
            return f"{option} {value}: {included} is no such file"
        kind = "constraints" if option in ("-c", "--constraint") else "requirements"
        self.content.append(f"begin {kind}")
        self._read(included, root)
        self.content.append(f"end {kind}")
        return ""

    def _package(self, line: str, root: Path) -> str:
        bare = _OF_REQUIREMENT.sub("", line).strip()
        if _is_local(bare):
            return self._local(bare, root)
        if "://" not in bare or "@" in bare.partition("://")[0]:
            problem = _requirement_problem(bare)
            if problem:
                return problem
        self.content.append(line)
        return ""

    def _local(self, written: str, root: Path) -> str:
        """A wheel on this machine, which pip looks for from its working folder."""
        file = root / written.partition(";")[0].strip()
        if not file.is_file():
            if file.is_dir():
                return f"{written}: {file} is a folder; build a wheel of it"
            shown = f"{file.name}: " if file.name.endswith(_ARCHIVES) else ""
            return f"{shown}no such file in {file.parent if shown else root}"
        self.files.append(file)
        self.content.append(f"{file.name} sha256:{_sha256(file)}")
        return ""


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _is_package(line: str) -> bool:
    return not line.startswith(("-", "begin ", "end "))


def _is_local(line: str) -> bool:
    path = line.partition(";")[0].strip()
    return "://" not in line and (path.startswith((".", "/")) or path.endswith(_ARCHIVES))


def _requirement_problem(line: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    if not _NAME.match(line):
        return "names no package"
    if "${" in line:  # pip puts variables of the environment in
        return ""
    try:
        Requirement(line)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        return f"is no requirement{f': {reason}' if reason.startswith('Expected ') else ''}"
    return ""


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each logical line with the number of its first, without comments."""
    whole, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if whole else number
        clean = _COMMENT.sub("", line)
        if clean.endswith("\\"):
            whole += clean[:-1]
            continue
        whole = (whole + clean).strip()
        if whole:
            yield first, whole
        whole = ""
    if whole.strip():
        yield first, whole.strip()
