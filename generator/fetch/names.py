"""Resolves the model names of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from generator.errors import ModelError
from generator.spec.model_spec import ModelSpec
from generator.yaml_file.schema import did_you_mean


def chosen_models(
    specs: Sequence[ModelSpec], names: Sequence[str], config: Path
) -> list[ModelSpec]:
    """The models of these names; all of them without names. Raises ModelError for an unknown
    name.
    """
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "models")
            raise ModelError(f"{config} has no model named {name!r}{hint}")
    return [spec for spec in specs if not names or spec.name in names]


def hub_models(specs: Iterable[ModelSpec]) -> list[ModelSpec]:
    """The models that come from the Hub; adapters are listed as models of their own."""
    return [part for spec in specs for part in spec.parts if not part.source.is_local]
