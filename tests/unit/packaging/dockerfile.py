"""Reads a Dockerfile into stages of instructions. Knows nothing of what an instruction means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continuation lines joined: ``RUN`` and what follows it."""

    name: str
    value: str


@dataclass(frozen=True)
class Stage:
    """What lies between one ``FROM`` and the next."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        """Return what follows each instruction of that name, in order."""
        return [entry.value for entry in self.instructions if entry.name == name]


def read_instructions(path: Path) -> list[Instruction]:
    """Return the file's instructions in order, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    words = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [Instruction(name.upper(), value.strip()) for name, value in words]


def read_stages(path: Path) -> dict[str, Stage]:
    """Return the stages by name; what stands before the first ``FROM`` is the stage ``""``."""
    stages = {"": Stage(base="", name="")}
    current = stages[""]
    for instruction in read_instructions(path):
        if instruction.name == "FROM":
            base, _, name = re.split(r"\s+", instruction.value)
            current = stages[name] = Stage(base, name)
        else:
            current.instructions.append(instruction)
    return stages
