"""Arguments of vLLM's engine: our options and the user's own arguments in its names.
Imports no vLLM.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.regular_file import read_json
from hf_triton.runtime.weights.hub_files import ADAPTER_CONFIG
from hf_triton.runtime.weights.model_files import adapter_folder
from hf_triton.runtime.weights.served_model import ServedAdapter, ServedModel
from hf_triton.text_generation.memory.layer_shapes import context_length
from hf_triton.text_generation.options import PARALLEL, Options

_GIB = 2**30
_USUAL_SEQS = 64
_LARGEST_DEFAULT = 4 * _GIB
_BLOCK = 128  # tokens, of vLLM's cache on a CPU
_LISTED = 3
_GRAMMARS = "guidance"
_MOST_ADAPTERS = 2 * 256  # of a model (generator/spec/model_spec.py), and those before a change
_PLACES, _USUAL_RANK = 4, 16
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has kernels for


def engine_arguments(
    served: ServedModel, options: Options, files: Path, dtype: Any, cache_bytes: int | None
) -> dict[str, Any]:
    """All arguments; vLLM sizes the cache where ``cache_bytes`` is None. Raises LoadError for an
    argument that an option says too, or another backend of grammars.
    """
    given = dict(options.vllm or {})
    most, name = options.max_num_batched_tokens, "max_num_batched_tokens"
    if most is not None and name in given:
        raise LoadError(f"options.vllm.{name}: got {given[name]}, but options.{name} is {most}")
    outputs = given.get("structured_outputs_config") or {}
    if outputs.get("backend", _GRAMMARS) != _GRAMMARS:
        raise LoadError(
            f"options.vllm.structured_outputs_config: got backend {outputs['backend']}, allowed: "
            f"{_GRAMMARS}, which hf-triton's grammars are written for"
        )
    ours = {
        "model": str(files),
        "dtype": str(dtype).removeprefix("torch."),
        "trust_remote_code": served.trust_remote_code,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": most,
        "kv_cache_memory_bytes": cache_bytes,
        # Left out it is vLLM's own choice; refused it must be off: who asks for that wants privacy.
        "enable_prefix_caching": None if options.prefix_cache else False,
    }
    return {
        **{name: value for name, value in ours.items() if value is not None},
        "tokenizer_mode": "hf",  # for grammars alone: texts become tokens, and tokens texts, here
        "generation_config": "vllm",  # what requests don't say has the defaults of all engines
        "disable_log_stats": True,
        **given,
        "structured_outputs_config": {**outputs, "backend": _GRAMMARS},
    }


def require_known(given: Mapping[str, Any], known: Collection[str], version: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, _LISTED)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise LoadError(f"options.vllm.{name}: {version} has no such argument{hint}")


def num_devices(given: Mapping[str, Any]) -> int:
    return math.prod(int(given.get(name, 1)) for name in PARALLEL)


def require_devices(
    given: Mapping[str, Any], placement: Placement, device_type: str, num_gpus: int
) -> None:
    """Raises LoadError where the instance is on another type of device than vLLM's ``device_type``,
    or has too few GPUs.
    """
    here = placement.device.partition(":")[0]
    if here != device_type:
        raise LoadError(
            f"engine: vllm: the installed vLLM is built for {device_type}, this instance is on "
            f"{here}: install another build of it, or change instance_group"
        )
    num = num_devices(given)
    if here != "cuda" or num == 1:
        return
    if gpu_index(placement) is not None:
        raise LoadError(
            f"options.vllm asks for {num} GPUs, and an instance of KIND_GPU has one: write "
            "instance_group: [{count: 1, kind: KIND_MODEL}]"
        )
    if num > num_gpus and given.get("distributed_executor_backend") != "ray":
        raise LoadError(
            f"options.vllm asks for {num} GPUs, this machine shows {num_gpus}: lower "
            "tensor_parallel_size or pipeline_parallel_size, or let Ray bring more machines "
            "(distributed_executor_backend: ray)"
        )


def gpu_index(placement: Placement) -> int | None:
    """The GPU of an instance of KIND_GPU; None for one that may use all."""
    is_single = placement.device_map == {"": placement.device}
    index = placement.device.partition("cuda:")[2]
    return int(index) if is_single and index else None


def default_cache_bytes(options: Options, config: Any, element_bytes: int, free_bytes: int) -> int:
    """Bytes for keys and values on a CPU: what all sequences need, at most half of the free memory.
    vLLM's default is most of the machine.
    """
    config = config.get_text_config()
    length = options.max_model_len or context_length(config)
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    hidden = getattr(config, "hidden_size", None)
    if not (length and layers and heads and hidden):  # an architecture with other names
        return min(_LARGEST_DEFAULT, free_bytes // 2)
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    tokens = -(-length // _BLOCK) * _BLOCK + _BLOCK
    num_seqs = options.max_num_seqs or _USUAL_SEQS
    needed = int(2 * layers * kv_heads * head_dim * element_bytes * tokens * num_seqs)
    return min(needed, free_bytes // 2)


class AdapterFile(NamedTuple):
    adapter: ServedAdapter
    folder: Path


def adapter_files(served: ServedModel, wanted: Sequence[ServedAdapter]) -> list[AdapterFile]:
    """Raises LoadError, with its name, for an adapter without files."""
    return [AdapterFile(one, adapter_folder(served, one)) for one in wanted]


def adapter_arguments(folders: Mapping[str, Path], given: Mapping[str, Any]) -> dict[str, Any]:
    """All adapters can be in one step, unless the user's arguments limit them, and all stay in
    memory. ``folders`` is by name. Raises LoadError for an unreadable configuration or a rank that
    is too large.
    """
    ranks = (_rank(name, folder) for name, folder in folders.items())
    at_once = given.get("max_loras", len(folders) or _PLACES)
    return {
        "enable_lora": True,
        "max_loras": at_once,
        # Those that it would read again may be gone, and that would end its process.
        "max_cpu_loras": max(at_once, _MOST_ADAPTERS),
        "max_lora_rank": max(ranks, default=_USUAL_RANK),
    }


def _rank(name: str, folder: Path) -> int:
    """The smallest rank of vLLM's that holds the adapter."""
    try:
        config = read_json(folder / ADAPTER_CONFIG)
        rank = max(map(int, (config["r"], *(config.get("rank_pattern") or {}).values())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"{ADAPTER_CONFIG} can't be read ({type(error).__name__}: {error})"
        raise LoadError(f"adapter {name}: {problem}") from error
    fitting = next((allowed for allowed in _RANKS if allowed >= rank), None)
    if fitting is None:
        raise LoadError(f"adapter {name}: got rank {rank}, vLLM takes at most {_RANKS[-1]}")
    return fitting
