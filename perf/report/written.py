"""Writes text: a file whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write_text(file: Path, text: str) -> None:
    """Replaces ``file``. Raises OSError."""
    temporary = file.with_name(f".{file.name}.new")
    try:
        temporary.write_text(encodable(text), encoding="utf-8", newline="")
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def encodable(text: str) -> str:
    """``text`` with an escape for what UTF-8 has no bytes for: half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()
