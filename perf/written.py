"""Where every command of perf leaves its report."""

from __future__ import annotations

from pathlib import Path


def write_report(output: Path, as_json: str, as_markdown: str) -> None:
    """Writes ``output``.json and ``output``.md, and prints the latter."""
    output.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{output}.json").write_text(as_json, encoding="utf-8")
    Path(f"{output}.md").write_text(as_markdown, encoding="utf-8")
    print(as_markdown)
