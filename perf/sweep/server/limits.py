"""The decoders among the models of a repository that run on this machine's processor, and what it
allows them (perf/roofline.py). A GPU or another machine has limits of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from generator.render.model_folder import VALUES_FILE
from generator.spec.triton_models import ENGINE_SUFFIX
from perf import roofline
from perf.report.schema import Measurement, read_run, write_run
from perf.roofline import Decoder
from perf.sweep.requests.targets import of_repository
from perf.usage import gpu_names

_TASK = "text-generation"
_KIND_CPU = 2  # inference.ModelInstanceGroup.Kind, model_config.proto


@dataclass(frozen=True)
class Limits:
    """The decoders by the names of their models, and the machine's figures."""

    machine: Mapping[str, float] = field(default_factory=dict)
    decoders: Mapping[str, Decoder] = field(default_factory=dict)

    def with_share(self, found: Measurement) -> Measurement:
        """The measurement, with its share where there is one."""
        decoder = self.decoders.get(found.load.target)
        return replace(found, roofline_share=roofline.share_of(self.machine, decoder, found))


def limits_in(
    folder: Path, names: Sequence[str], repository: Path, files: Path | None = None
) -> Limits:
    """What this machine allows the decoders among these models, kept in the run's ``folder``: it is
    measured once. ``files`` has the config.json of all of them, where it is known. Raises OSError.
    """
    decoders = decoders_of(names, repository, files)
    if not decoders:
        return Limits()
    run = read_run(folder)
    if not run.roofline:
        print("hf-triton: measuring what this machine allows a decoder", file=sys.stderr)
        try:
            run = replace(run, roofline=roofline.figures())
        except roofline.NotMeasuredError as error:
            note = f"the machine's limits were not measured: {error}"
            run = replace(run, notes=list(dict.fromkeys([*run.notes, note])))
        write_run(folder, run)
    return Limits(run.roofline, decoders)


def decoders_of(
    names: Sequence[str], repository: Path, files: Path | None = None
) -> dict[str, Decoder]:
    """The decoders whose limit is known, by the names of their models."""
    has_gpus = bool(names) and bool(gpu_names())
    found = {name: _decoder(name, repository, has_gpus, files) for name in dict.fromkeys(names)}
    return {name: decoder for name, decoder in found.items() if decoder is not None}


def _decoder(name: str, repository: Path, has_gpus: bool, files: Path | None) -> Decoder | None:
    public = name.removesuffix(ENGINE_SUFFIX)
    for model in (public + ENGINE_SUFFIX, public):
        folder = repository / model
        values, config = _values(folder), of_repository(repository)(model)
        if config is None or values.get("task") != _TASK:
            continue
        groups = list(config.instance_group)
        if has_gpus and not (groups and all(group.kind == _KIND_CPU for group in groups)):
            return None
        count = sum(max(1, group.count) for group in groups) or 1
        most = values.get("options", {}).get("max_num_seqs")
        files, dtype = files or _files(folder, values), str(values.get("dtype") or "auto")
        return roofline.decoder_in(files, dtype, most * count if most else None) if files else None
    return None


def _values(folder: Path) -> Mapping[str, Any]:
    try:
        values = json.loads((folder / VALUES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _files(folder: Path, values: Mapping[str, Any]) -> Path | None:
    """The folder of config.json: the model's own, or the only snapshot in its cache."""
    if values.get("local"):
        return folder / str(values.get("model"))
    found = [path.parent for path in folder.glob("hf_cache/**/snapshots/*/config.json")]
    pinned = [path for path in found if path.name == values.get("revision")]
    return (pinned or found)[0] if len(pinned or found) == 1 else None
