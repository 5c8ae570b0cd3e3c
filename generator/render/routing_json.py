"""Renders routing.json: the arms that share a model's requests, by the names of their Triton
models.

The running model reads it again and again (hf_triton/runtime/routing/routing_json.py): a change
needs no reload.
"""

from __future__ import annotations

import json
from fractions import Fraction

from generator.render.digest import ROUTING_FILE
from generator.spec.model_spec import ModelSpec
from generator.spec.triton_models import TritonModel, engine_name


def routing_files(model: TritonModel) -> dict[str, bytes]:
    """The file by its path, where the model's folder needs one: the folder that has the engine."""
    spec = model.spec
    if model.role not in ("whole", "engine") or not (spec.canary or spec.shadow):
        return {}
    values = {"arms": _arms(spec), "sticky": spec.canary and spec.canary.sticky}
    text = json.dumps({**values, "shadow": _shadow(spec)}, indent=2)
    return {ROUTING_FILE: f"{text}\n".encode()}


def _arms(spec: ModelSpec) -> list[dict[str, object]]:
    arms = spec.canary.arms if spec.canary else ()
    return [
        {"name": arm.name, "engine": _engine(spec, arm.model), "weight": _number(arm.weight)}
        for arm in arms
    ]


def _shadow(spec: ModelSpec) -> dict[str, object] | None:
    shadow = spec.shadow
    if shadow is None:
        return None
    engine = _engine(spec, shadow.model)
    return {"name": shadow.name, "engine": engine, "percent": _number(shadow.percent)}


def _engine(spec: ModelSpec, model: str) -> str:
    """The folder of another entry's engine, which streams where this one does."""
    return engine_name(model) if spec.streaming else model


def _number(share: Fraction) -> int | float:
    return int(share) if share.denominator == 1 else float(share)
