"""A model that vLLM spreads over several nodes: how many, with how many GPUs each.

Knows what vLLM is asked for; knows no template.
"""

from __future__ import annotations

from generator.deploy.options import Options
from generator.deploy.units import Unit
from generator.errors import UsageError
from generator.spec import vllm_arguments
from generator.spec.model_spec import ModelSpec

_DEFAULT_GPUS_PER_NODE = 8


def num_gpus(spec: ModelSpec) -> int:
    """The GPUs that one engine of a model computes on: 1 without vLLM."""
    return vllm_arguments.num_gpus(spec.options)


def max_gpus(unit: Unit) -> int:
    """The GPUs of the engine that computes on most of them, of the models of one server."""
    return max(map(num_gpus, unit.specs))


def nodes_and_gpus(unit: Unit, args: Options) -> tuple[int, int]:
    """Nodes, and GPUs of each, for the models of one server; 1 and none where one node does.

    Raises UsageError where several can't be had as models.yaml or the flags are.
    """
    spec = max(unit.specs, key=num_gpus)
    total, most = num_gpus(spec), args.gpus_per_node or _DEFAULT_GPUS_PER_NODE
    if total <= most:
        return 1, 0
    nodes = -(-total // most)
    _check(spec, unit, args, nodes, most)
    return nodes, total // nodes


def _check(spec: ModelSpec, unit: Unit, args: Options, nodes: int, most: int) -> None:
    total = num_gpus(spec)
    asked = f"'{spec.name}' asks for {total} GPUs (options.vllm), of which a node has {most}"
    if args.target != "kubernetes":
        raise UsageError(f"{asked}: several nodes are for deploy kubernetes, got {args.target}")
    if len(unit.specs) > 1:
        raise UsageError(f"{asked}: give each model servers of its own with --per-model")
    if args.gpus is not None:
        raise UsageError(f"{asked}: leave --gpus out; --gpus-per-node says what a node has")
    if total % nodes:
        raise UsageError(f"{asked}: {total} are not to be shared evenly by {nodes} nodes")
    if vllm_arguments.own_arguments(spec.options).get("distributed_executor_backend") != "ray":
        raise UsageError(
            f"{asked}: vLLM spreads over nodes by Ray, so options.vllm needs "
            "distributed_executor_backend: ray"
        )
