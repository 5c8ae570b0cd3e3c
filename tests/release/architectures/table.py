"""Lists how model types are served: ``rows.txt``, for the tests, and docs/architectures.md.

``python -m tests.release.architectures.table`` writes both, with the names of types to measure
those alone.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "architectures.md"
ROWS = Path(__file__).with_name("rows.txt")
COMMAND = "python -m tests.release.architectures.table"
_PROCESSES = 2

if __name__ == "__main__":  # as pytest's settings have them
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "stub")]

from tests.release.architectures.measuring import (  # noqa: E402
    DTYPES,
    KINDS,
    RIGHT,
    Row,
    classes_of,
    measure,
    names_of,
)

_TITLES = {
    "causal": "Decoders",
    "sequence-to-sequence": "Encoder-decoders and audio-text models",
    "image-text": "Image-text models",
}
_PLAIN = ("fused", "packed", "packed, states", "fused, packed with images", "encoder-decoder")
_HEAD = """# Model types

After this page you know how your model's type runs before you serve it. `config.json` has the \
type as `model_type`; [engines](engines.md#in_flight) explains the runners.

Every type of transformers {version} that generates text was built as a tiny model with random \
weights and served: prompts of mixed lengths, some joining later or beginning alike, with images \
where the type takes them. A type is wrong if its greedy tokens differ from those of \
transformers' own `generate`, other than by ties within rounding, between tokens or, in bfloat16, \
between a mixture's experts.

{totals}

A type that loads and is in no table below runs in flight: fused, packed or encoder-decoder. Where \
two stand, the second one is that of bfloat16. `tests/release/architectures/rows.txt` has all \
types, and why one does not load: it may be that its tiny model could not be built.
"""


@cache
def read() -> dict[tuple[str, str], Row]:
    """The rows by kind and name; in the file a result stands once, above the names it is of."""
    rows: list[Row] = []
    result: list[str] = []
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            kind, runner, *tokens, why = result
            rows += [Row(kind, name, runner, tuple(tokens), why) for name in line.split()]
        else:
            result = line.split("\t")
    rows.sort(key=lambda row: (KINDS.index(row.kind), row.name))
    return {(row.kind, row.name): row for row in rows}


def rows_text(rows: Iterable[Row]) -> str:
    """The inverse of ``read``."""
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault((row.kind, row.runner, *row.tokens, row.why), []).append(row.name)
    indented = textwrap.TextWrapper(
        100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return "".join(
        "\t".join(result) + "\n" + indented.fill(" ".join(alike)) + "\n"
        for result, alike in names.items()
    )


def version() -> str:
    """transformers' version that the page was written with."""
    return PAGE.read_text(encoding="utf-8").split("transformers ", 1)[1].split()[0]


# A CPU without instructions for bfloat16 rounds in other places, and tiny models choose other
# experts: there only the runner in float32 is compared.
_HAS_BFLOAT16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def worse(row: Row, before: Row) -> str:
    """The losses of a measured row; empty if there are none."""
    lost = [
        f"{dtype}: {was} before, {now} now"
        for dtype, was, now in zip(DTYPES, before.tokens, row.tokens, strict=False)
        if was in RIGHT and now not in RIGHT
    ]
    compared = row if _HAS_BFLOAT16 else replace(row, runner=row.runner.partition(" / ")[0])
    if before.is_in_flight and not compared.is_in_flight:
        lost.append(f"in flight ({before.runner}) before, {row.runner} now: {row.why}")
    if not before.has_text_alone and row.has_text_alone:
        lost.append(f"with images before, without now: {row.why}")
    return "; ".join(lost)


def measurable(*kinds: str) -> list[tuple[str, str]]:
    """The types of these kinds by kind and name: the first of those that one class computes, and
    none that is served in no way.
    """
    rows = read()
    found: dict[tuple[str, Any], tuple[str, str]] = {}
    for kind in kinds:
        for name, computed_by in sorted(classes_of(kind).items()):
            row = rows.get((kind, name))
            if row is None or {*row.tokens} & {*RIGHT}:
                found.setdefault((kind, computed_by), (kind, name))
    return [*found.values()]


def dtypes_to_test(kind: str, name: str) -> tuple[str, ...]:
    """All for the first type of each runner, which is what rounding concerns; ``main`` measures all
    types in all.
    """
    runner = read()[kind, name].runner
    first = next(each for each in measurable(kind) if read()[each].runner == runner)
    return DTYPES if first == (kind, name) else DTYPES[:1]


def assert_no_worse(kind: str, name: str, folder: Path) -> None:
    """Measures a type in an empty folder."""
    lost = worse(measure(kind, name, folder, dtypes_to_test(kind, name)), read()[kind, name])
    assert not lost, f"{lost}. Mend it, or write the page again ({COMMAND}) and say why"


def text(rows: Collection[Row]) -> str:
    """The page."""
    import transformers

    by_kind = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    totals = "\n".join(f"- {_TITLES[kind]}: {_totals(own)}" for kind, own in by_kind.items())
    number = ".".join(transformers.__version__.split(".")[:2])
    parts = [_HEAD.format(version=number, totals=totals)]
    for kind, own in by_kind.items():
        parts.append(f"## {_TITLES[kind]}\n")
        parts.append("| the log says | types |\n|---|---|")
        others = {row.runner for row in own} - {*_PLAIN}
        for runner in sorted(others, key=lambda one: (one == "-", one)):
            names = ", ".join(f"`{row.name}`" for row in own if row.runner == runner)
            parts.append(f"| {'does not load' if runner == '-' else runner} | {names} |")
        parts.append("")
    return "\n".join(parts)


def _totals(rows: list[Row]) -> str:
    loaded = [row for row in rows if row.runner != "-"]
    wrong = [row.name for row in loaded if "wrong" in row.tokens]
    in_flight = sum(row.is_in_flight for row in loaded)
    alone = sum(row.is_in_flight and row.has_text_alone for row in loaded)
    less = f" ({alone} of them measured with text alone)" if alone else ""
    named = f" ({', '.join(wrong)})" if wrong else ""
    return (
        f"{len(rows)} types, {len(loaded)} load, {in_flight} in flight{less}, "
        f"{len(wrong)} wrong{named}"
    )


def _measured(item: tuple[str, str]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return measure(*item, Path(folder))


def _begin() -> None:
    import torch

    torch.set_num_threads(1)


def main(names: list[str]) -> int:
    """Measures what is asked for, writes the page, and names what got worse."""
    items = [(kind, name) for kind in KINDS for name in names_of(kind)]
    before = read()
    rows = {item: before[item] for item in items if item in before}
    todo = [item for item in items if not names or item[1] in names]
    found: Any
    with multiprocessing.get_context("spawn").Pool(_PROCESSES, _begin) as pool:
        for found in pool.imap_unordered(_measured, todo):
            print(found, flush=True)
            rows[found.kind, found.name] = found
    for item in todo:
        if item in before and (lost := worse(rows[item], before[item])):
            print(f"worse: {item[1]}: {lost}", file=sys.stderr)
    kept = [rows[item] for item in items if item in rows]
    ROWS.write_text(rows_text(kept), encoding="utf-8")
    PAGE.write_text(text(kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
