"""Writes text: a file whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write_text(file: Path, text: str) -> None:
    """Replaces ``file``. Raises OSError, which names it."""
    temporary = file.with_name(f".{file.name}.new")
    try:
        temporary.write_text(encodable(text), encoding="utf-8", newline="")
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error


def encodable(text: str) -> str:
    """``text`` with an escape for what UTF-8 has no bytes for: half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()
