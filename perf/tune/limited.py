"""What share of this machine's limit a trial of text generation reached, where its processor runs
the model. Measures the machine once for each search, before its first trial.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from generator.spec import ModelSpec
from perf.report.schema import Measurement, read_run, write_run
from perf.roofline.share import Decoder, decoder_in
from perf.sweep.limits import limits, with_roofline
from perf.sweep.machine_use import gpu_names
from perf.tune.settings import INSTANCES, OPTIONS
from perf.tune.space import Settings

_SEQUENCES = f"{OPTIONS}max_num_seqs"


def limited(
    folder: Path, spec: ModelSpec, files: Path | None
) -> Callable[[Measurement], Measurement]:
    """Adds its share to a measurement; ``files`` has the model's config.json. Raises OSError."""
    decoder = _decoder(spec, files)
    if decoder is None:
        return lambda found: found
    run = read_run(folder)
    if not run.roofline:
        print("measuring what this machine allows a decoder", file=sys.stderr)
        run = with_roofline(run)
        write_run(folder, run)

    def with_share(found: Measurement) -> Measurement:
        seen = decoder_with(decoder, spec, found.load.settings)
        return limits(run, {spec.name: seen}).with_share(found)

    return with_share


def decoder_with(decoder: Decoder, spec: ModelSpec, settings: Settings) -> Decoder:
    """With at most as many sequences at once as these settings allow."""
    most = settings.get(_SEQUENCES, spec.options.get("max_num_seqs"))
    count = settings.get(INSTANCES) or sum(group.count for group in spec.instance_groups) or 1
    return replace(decoder, max_num_seqs=int(str(most)) * int(count) if most else None)


def _decoder(spec: ModelSpec, files: Path | None) -> Decoder | None:
    if spec.task != "text-generation" or files is None:
        return None
    groups = spec.instance_groups
    on_cpu = bool(groups) and all(group.kind == "KIND_CPU" for group in groups)
    return None if not on_cpu and gpu_names() else decoder_in(files, spec.dtype)
