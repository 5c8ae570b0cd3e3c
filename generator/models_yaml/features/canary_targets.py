"""Checks the other entries of models.yaml that arms and shadows name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from generator.spec.model_spec import ModelSpec
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report


@dataclass(frozen=True)
class Target:
    """Another entry that a model named ``owner`` shares its requests with, and where it says so."""

    node: Node
    owner: str

    @property
    def name(self) -> str:
        """The other entry's."""
        return str(self.node.value)


def refuse_targets(
    targets: Iterable[Target],
    names: Iterable[str],
    specs: Iterable[ModelSpec],
    report: Report,
) -> None:
    """Reports each target that can't answer for its owner. ``names`` are those of all entries,
    ``specs`` the entries that are right by themselves.
    """
    known = dict.fromkeys(names)
    by_name = {spec.name: spec for spec in specs}
    for target in targets:
        for message in _problems(target, known, by_name):
            report.add(target.node, message)


def _problems(
    target: Target, names: Collection[str], specs: Mapping[str, ModelSpec]
) -> Iterator[str]:
    shown = schema.show(target.node)
    if target.name == target.owner:
        yield f"got {shown}, which is this model itself; expected another one"
    elif target.name not in names:
        others = [name for name in names if name != target.owner]
        hint = schema.did_you_mean(target.name, others, "models")
        yield f"got {shown}, which is no model of this file{hint}"
    elif target.owner in specs and target.name in specs:
        owner, other = specs[target.owner], specs[target.name]
        yield from _differences(owner, other)
        if other.canary is not None or other.shadow is not None:
            what = "canary" if other.canary is not None else "shadow"
            yield (
                f"'{other.name}' has a {what} of its own, which requests that are routed already "
                "don't pass; name the model that is meant, or take it away there"
            )


def _differences(owner: ModelSpec, other: ModelSpec) -> Iterator[str]:
    """Why one model can't be asked what the other one is."""
    if other.ensemble is not None:
        yield f"'{other.name}' is an ensemble, which only Triton itself can ask; set layout: single"
        return
    if other.layout == "vllm-backend":
        yield f"'{other.name}' runs on NVIDIA's vLLM backend, which answers no model but Triton"
        return
    if other.task != owner.task:
        yield f"'{other.name}' is for {other.task}, expected a model for {owner.task}"
        return
    for key, mine, theirs in (
        ("streaming", str(owner.streaming).lower(), str(other.streaming).lower()),
        ("max_batch_size", str(owner.max_batch_size), str(other.max_batch_size)),
    ):
        if mine != theirs:
            yield f"'{other.name}' has {key} {theirs}, expected {mine} as here: it is asked alike"
    known = {adapter.name for adapter in other.adapters}
    if missing := [adapter.name for adapter in owner.adapters if adapter.name not in known]:
        lacks = f"lacks the adapters {', '.join(missing)}"
        yield f"'{other.name}' {lacks}, which requests may name: it is asked alike"
