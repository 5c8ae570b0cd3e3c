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
    if model.role not in ("whole", "engine") or spec.canary is None:
        return {}
    arms = [
        {
            "name": arm.name,
            "engine": _engine(spec, arm.model_of(spec.name)),
            "weight": _number(arm.weight),
        }
        for arm in spec.canary.arms
    ]
    text = json.dumps({"arms": arms, "sticky": spec.canary.sticky}, indent=2)
    return {ROUTING_FILE: f"{text}\n".encode()}


def _engine(spec: ModelSpec, model: str) -> str:
    """The folder of another entry's engine, which streams where this one does."""
    return engine_name(model) if spec.streaming else model


def _number(share: Fraction) -> int | float:
    return int(share) if share.denominator == 1 else float(share)
