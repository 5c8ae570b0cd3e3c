"""How a sweep comes about, for its run.json: what was measured with, on what, and what a reader has
to know of the figures. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perf.report.head import here
from perf.report.schema import Run
from perf.sweep.analyzer import Analyzer
from perf.sweep.machine_use import gpu_names
from perf.sweep.plan import Planned
from perf.sweep.run_folder import KIND
from perf.sweep.scenario import Addresses, Sweep, as_values
from perf.sweep.triton import TritonView


def described(
    sweep: Sweep,
    command: str,
    analyzer: Analyzer,
    found: Sequence[Planned],
    views: Mapping[Addresses, TritonView],
    inputs: str,
) -> Run:
    """How it comes about, for run.json."""
    versions = {"perf_analyzer": analyzer.version}
    served = {view.version() for view in views.values()} - {""}
    if served:
        versions["triton"] = ", ".join(sorted(served))
    models = ", ".join(dict.fromkeys(one.load.target for one in found))
    return Run(
        kind=KIND,
        **here(command, versions=versions, hardware=_gpus(views)).origin(),
        title=sweep.title or f"sweep of {models}",
        scenario={**as_values(sweep), "inputs": inputs},
        notes=_notes(analyzer, found, views),
    )


def _notes(
    analyzer: Analyzer, found: Sequence[Planned], views: Mapping[Addresses, TritonView]
) -> list[str]:
    notes = [f"perf_analyzer {analyzer.version}, {analyzer.origin}"]
    if any(one.load.endpoint == "http-generate-stream" for one in found):
        notes.append(
            "http-generate-stream is loaded by perf.sweep.sse_load with the same windows: "
            "perf_analyzer reads streams over gRPC only"
        )
    if any(one.streams for one in found):
        notes.append("inter-token latency is the time between the chunks of an answer")
    notes += dict.fromkeys(one.requests.note for one in found if one.requests.note)
    far = [view.addresses.http for view in views.values() if not view.is_local]
    if far:
        notes.append(
            f"hardware and CPU are of the machine that sent the load; {', '.join(far)} is another"
        )
    return notes


def _gpus(views: Mapping[Addresses, TritonView]) -> dict[str, str]:
    """This machine's, where a server runs on it."""
    names = gpu_names() if any(view.is_local for view in views.values()) else []
    return {"gpu": ", ".join(names)} if names else {}
