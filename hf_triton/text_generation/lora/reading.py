"""Reads adapters as PEFT saves them: which layers each changes, by which matrices. PEFT decides
both on the model's modules without weights, so the served model is never changed. Features beyond
plain LoRA are refused by name, never ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.regular_file import read_json
from hf_triton.runtime.request.json_text import short
from hf_triton.runtime.weights.hub_files import ADAPTER_CONFIG
from hf_triton.runtime.weights.model_files import adapter_folder, adapters_at_load
from hf_triton.runtime.weights.served_model import ServedAdapter, ServedModel
from hf_triton.runtime.weights.weight_loading import load_without_weights

from .linear import Adapter, Adapters, LowRank

_PREFIX = "base_model.model."
_SCRATCH = "adapter"
# The fields of a LoraConfig that PEFT's own loading takes care of, or that only training reads.
_KNOWN_FIELDS = frozenset(
    (
        *("peft_type", "task_type", "base_model_name_or_path", "revision", "peft_version"),
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        *("lora_dropout", "inference_mode", "auto_mapping", "init_lora_weights", "runtime_config"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
        *("megatron_core", "qalora_group_size"),
    )
)
# Ways to begin training that move a part of the base's weights into the adapter.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


class AdapterReader:
    """Reads a model's adapters, each once. Raises LoadError where PEFT is not installed."""

    def __init__(self, served: ServedModel, config: Any, dtype: torch.dtype) -> None:
        try:
            import peft  # noqa: F401, asked for here, so that it is told of before anything is read
        except ImportError as error:
            raise LoadError(
                "adapters: they need PEFT, which is not installed in the server's Python "
                f"({error}): pip install 'peft>=0.21,<0.22'"
            ) from error
        from transformers import AutoModelForCausalLM

        self._served = served
        self._modules = load_without_weights(served, AutoModelForCausalLM, config).to(dtype)
        self._loaded: list[tuple[ServedAdapter, Adapter]] = []

    def adapters(self) -> Adapters:
        """The model's adapters at load, without those that a request had loaded and that can't be
        read any more. Raises LoadError as ``read``.
        """
        self._loaded = adapters_at_load(self._served, self._read_each)
        return Adapters([adapter for _, adapter in self._loaded], self._sizes())

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """in_features and out_features of the linear layers, by name."""
        from transformers.pytorch_utils import Conv1D

        found = {}
        for name, module in self._modules.named_modules():
            if isinstance(module, torch.nn.Linear):
                found[name] = (module.in_features, module.out_features)
            elif isinstance(module, Conv1D):
                found[name] = (module.nx, module.nf)
        return found

    def read(self, wanted: Sequence[ServedAdapter]) -> list[Adapter]:
        """Reads these and forgets all others. Raises LoadError, with the adapter's name."""
        self._loaded = self._read_each(wanted)
        return [adapter for _, adapter in self._loaded]

    def _read_each(self, wanted: Sequence[ServedAdapter]) -> list[tuple[ServedAdapter, Adapter]]:
        folders = [adapter_folder(self._served, one) for one in wanted]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's advice for training
            return [(one, self._adapter(one, at)) for one, at in zip(wanted, folders, strict=True)]

    def _adapter(self, wanted: ServedAdapter, folder: Path) -> Adapter:
        known = (adapter for one, adapter in self._loaded if one == wanted)
        return next(known, None) or _read(wanted.name, folder, self._modules, self._served)


def _read(name: str, folder: Path, modules: Any, served: ServedModel) -> Adapter:
    try:
        adapter = _adapter(name, folder, modules, served)
    except LoadError as error:
        raise LoadError(f"adapter {name}: {error}") from error
    except Exception as error:
        # Anybody may have written the file, so PEFT or safetensors may raise any error.
        raise LoadError(f"adapter {name}: {type(error).__name__}: {reason(error)}") from error
    ranks = sorted({part.rank for part in adapter.parts.values()})
    log.info(
        f"{served.name}: adapter {name}: {len(adapter.parts)} layers, rank "
        f"{' to '.join(map(str, dict.fromkeys((ranks[0], ranks[-1]))))}"
    )
    return adapter


def _adapter(name: str, folder: Path, modules: Any, served: ServedModel) -> Adapter:
    from peft import PeftConfig
    from peft.utils.save_and_load import load_peft_weights

    given = read_json(folder / ADAPTER_CONFIG)
    if not isinstance(given, dict):
        raise LoadError(f"{ADAPTER_CONFIG}: not a JSON object")
    kind = given.get("peft_type")
    if kind != "LORA":
        shown = short(kind) if isinstance(kind, str) else "no name"
        raise LoadError(f"{ADAPTER_CONFIG}: peft_type: got {shown}, expected LORA")
    config = PeftConfig.from_pretrained(str(folder))
    _check_fields(config)
    base = given.get("base_model_name_or_path") or "another model"
    weights, other = load_peft_weights(str(folder), "cpu"), f"{base}, not for {served.source}"
    return Adapter(name, _low_rank_layers(config, weights, modules, other))


def _check_fields(config: Any) -> None:
    """Raises LoadError for fields that ask for more than plain LoRA."""
    usual = type(config)()
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in _KNOWN_FIELDS and value and value != getattr(usual, field.name):
            raise LoadError(
                f"{ADAPTER_CONFIG}: {field.name} is set, and only plain LoRA is served; "
                "merge it into the model by PEFT, or train it without"
            )
    start = config.init_lora_weights
    if isinstance(start, str) and start.startswith(_CHANGES_BASE):
        raise LoadError(
            f"{ADAPTER_CONFIG}: init_lora_weights: {start} goes with changed weights of the base; "
            "save it by PEFT with path_initial_model_for_weight_conversion"
        )


def _low_rank_layers(
    config: Any, weights: dict[str, torch.Tensor], modules: Any, other: str
) -> dict[str, LowRank]:
    """Module name -> its change. ``other`` names the model that the adapter was made for."""
    from peft import PeftModel

    try:
        wrapped = PeftModel(modules, config, adapter_name=_SCRATCH, low_cpu_mem_usage=True)
    except ValueError as error:
        raise LoadError(f"{reason(error)}; it was made for {other}") from error
    left = dict(weights)
    try:
        layers = _lora_layers(wrapped.base_model.model)
        parts = {name: _low_rank(name, layer, left, other) for name, layer in layers.items()}
    finally:
        wrapped.unload()
    _refuse_rest(left, other)
    return parts


def _lora_layers(model: Any) -> dict[str, Any]:
    from peft.tuners.lora.layer import Linear, LoraLayer

    layers = {name: one for name, one in model.named_modules() if isinstance(one, LoraLayer)}
    for name, layer in layers.items():
        if not isinstance(layer, Linear) or layer.lora_variant:
            raise LoadError(f"{name}: its kind ({type(layer).__name__}) is not served, only Linear")
    return layers


def _low_rank(name: str, layer: Any, left: dict[str, torch.Tensor], other: str) -> LowRank:
    """Takes a layer's matrices out of ``left``, scaled, in the layer's dtype, in which finite
    numbers may become infinite.
    """
    dtype, scaling, found = layer.weight.dtype, layer.scaling[_SCRATCH], []
    sides = ("lora_A", layer.lora_A, 1.0), ("lora_B", layer.lora_B, scaling)
    for side, own, factor in sides:
        expected = tuple(own[_SCRATCH].weight.shape)
        matrix = left.pop(f"{_PREFIX}{name}.{side}.weight", None)
        if matrix is None:
            raise LoadError(f"no weights for {name}.{side}, which its {ADAPTER_CONFIG} names")
        if tuple(matrix.shape) != expected:
            raise LoadError(
                f"{name}.{side} is {_sizes(matrix.shape)}, this model needs {_sizes(expected)}: "
                f"it was made for {other}"
            )
        found.append((matrix.float() * factor).to(dtype))
        if not torch.isfinite(found[-1]).all():
            scaled = "" if factor == 1 else f" times the adapter's scaling, {factor:g}"
            kind = str(dtype).removeprefix("torch.")
            raise LoadError(f"{name}.{side} holds numbers that are not finite in {kind}{scaled}")
    return LowRank(*found)


def _refuse_rest(left: dict[str, torch.Tensor], other: str) -> None:
    for key in left:
        name = key.removeprefix(_PREFIX)
        if ".lora_" in name:
            raise LoadError(f"weights for {name}, which this model lacks: it was made for {other}")
        raise LoadError(
            f"whole weights of {name.replace('.base_layer.', '.')}, and only low-rank changes are "
            "served; save it by PEFT with save_embedding_layers=False"
        )


def _sizes(shape: Any) -> str:
    return " x ".join(map(str, shape))
