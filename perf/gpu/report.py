"""The results as Markdown: a table for each kind of figure, targets beside them.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perf.gpu.plan import FAKE, SECTIONS
from perf.gpu.results import Figure, Measured, Results, Target
from perf.report.markdown import table

_NUMBERS = ((100.0, ",.0f"), (10.0, ".1f"), (0.1, ".2f"))


def to_markdown(results: Results) -> str:
    """All sections in the plan's order, then what they were measured on and with."""
    lines = ["# On a GPU", ""]
    fakes = [one.device for one in results.sections.values() if one.device.get("device") == FAKE]
    lines += [f"**{fake_line(fakes[0])}**", ""] if fakes else []
    for name, section in SECTIONS.items():
        if name in results.sections:
            measured = results.sections[name]
            lines += [f"## {section.title} ({name})", "", *_section(measured)]
    lines.append(f"- hardware: {_joined(results.hardware)}")
    lines.append(f"- versions: {_joined(results.versions)}")
    return "\n".join(lines) + "\n"


def fake_line(device: Mapping[str, object]) -> str:
    """What is to be known before anything else of figures without a GPU."""
    return (
        f"On a fake GPU ({device['why']}): models are tiny and run on the CPU, times are left out"
    )


def _section(measured: Measured) -> Iterator[str]:
    if measured.state != "done":
        yield f"**{measured.state}**"
        yield ""
    for name in dict.fromkeys(figure.table for figure in measured.figures):
        yield from (f"{name}:", "")
        yield from _table([figure for figure in measured.figures if figure.table == name])
        yield ""
    yield f"- command: `{measured.command}`"
    yield f"- commit {measured.commit}, {measured.created}, took {measured.duration_s:.0f} s"
    yield f"- device: {_joined(measured.device)}"
    yield ""


def _table(figures: list[Figure]) -> list[str]:
    keys = list(dict.fromkeys(key for figure in figures for key in figure.row))
    rows = [[cell(key, figure.row.get(key)) for key in keys] for figure in figures]
    heads = [title(key) for key in keys]
    if any(figure.target for figure in figures):
        heads.append("target")
        for figure, row in zip(figures, rows, strict=True):
            row.append(target_cell(figure.target) if figure.target else "")
    return table(heads, rows, ">")


def one_line(section: str, figure: Figure) -> str:
    """A figure as it is told while the others are being measured."""
    values = ", ".join(f"{title(key)} {cell(key, value)}" for key, value in figure.row.items())
    target = f"; {target_cell(figure.target)}" if figure.target else ""
    return f"{section}: {figure.table}: {values}{target}"


def title(key: str) -> str:
    """``tokens_per_s`` as ``tokens/s``, ``limit_share`` as ``of the limit``."""
    if key == "limit_share":
        return "of the limit"
    return key.replace("_per_", "/").replace("_", " ")


def cell(key: str, value: str | int | float | bool | None) -> str:
    """A value as people read it; what ends in ``share`` is a percentage."""
    if value is None:
        return "-"
    if isinstance(value, str | bool | int):
        return str(value)
    if key.endswith("share"):
        return f"{value:.0%}"
    form = next((form for least, form in _NUMBERS if abs(value) >= least), ".3f")
    return f"{value:{form}}"


def target_cell(target: Target) -> str:
    """What was to be reached, and whether it was."""
    return f"{target.what}: {'met' if target.is_met else 'not met'}"


def summary(results: Results, names: list[str]) -> Iterator[str]:
    """A line for each section that was not measured whole, and for each target but those that were
    compared and met.
    """
    for name in names:
        measured = results.sections[name]
        if measured.state != "done":
            yield f"{name}: {measured.state}"
        for target in (figure.target for figure in measured.figures):
            if target and not (target.is_exact and target.is_met):
                yield f"{name}: {target_cell(target)} ({cell('', target.value)})"


def _joined(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
