"""Where a key is taken from: a file or the environment, never the command line, where everybody on
the machine could read it. It is in no log and no error.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from generator.errors import ServerError


@dataclass(frozen=True)
class KeySource:
    """The environment's ``variable``, over which a file that ``flag`` names wins. ``pattern`` is
    what the whole key must match, and ``expected`` says so.
    """

    variable: str
    flag: str
    pattern: re.Pattern[str]
    expected: str

    def take(self, file: Path | None, environment: MutableMapping[str, str]) -> str | None:
        """The key in ``file``, else in the environment, which loses it: it is none of the models'.

        Raises ServerError for one that can't be read or sent: an empty key protects nothing.
        """
        key, where = environment.pop(self.variable, None), self.variable
        if file is not None:
            where = f"{self.flag} {file}"
            key = _content(file, where)
        if key is None:
            return None
        key = key.strip()
        if not self.pattern.fullmatch(key):
            raise ServerError(f"{where}: expected {self.expected}")
        return key


def _content(file: Path, where: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ServerError(f"{where}: can't be read: {reason}") from None
