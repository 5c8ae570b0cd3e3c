"""Writes a file whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write_text(file: Path, text: str) -> None:
    """Replaces ``file``; what UTF-8 has no bytes for becomes an escape. Raises OSError."""
    temporary = file.with_name(f".{file.name}.new")
    try:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
