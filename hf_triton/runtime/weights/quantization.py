"""Turns models.yaml's ``quantization`` into the quantization config of transformers, and says in
one line where this machine can't compute so. A missing package is an ImportError.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import LoadError
from .served_model import ServedModel

if TYPE_CHECKING:
    import torch

_INT4_GROUP_SIZE = 128
_INT4_CAPABILITY = (8, 0)  # of the GPU, for torch's _weight_int4pack_mm


def quantization_config(served: ServedModel, config: Any, device: torch.device) -> Any:
    """The ``quantization_config`` of ``from_pretrained``; None if models.yaml asks for none. Raises
    LoadError: this machine or this checkpoint can't be quantized so.
    """
    saved = _saved_method(config)
    if saved is not None:
        if served.quantization is not None:
            raise LoadError(
                f"quantization: got {served.quantization['method']}, but the weights of "
                f"{served.source} are quantized already ({saved}): leave the key out"
            )
        return None
    if served.gguf_file is not None:
        # Kernels for its blocks would come from the Hub; before 5.23 they are dequantized anyway.
        import transformers

        gguf_config = getattr(transformers, "GgufConfig", None)
        return gguf_config and gguf_config(dequantize=True)
    if served.quantization is None:
        return None
    arguments = dict(served.quantization)
    method = arguments.pop("method")
    if not method.startswith("bitsandbytes"):
        return _torchao(method, arguments, device)
    import_module("bitsandbytes")
    from transformers import BitsAndBytesConfig

    bits = "load_in_8bit" if method == "bitsandbytes_8bit" else "load_in_4bit"
    return BitsAndBytesConfig(**{bits: True}, **arguments)


def _saved_method(config: Any) -> str | None:
    """The quant_method of a checkpoint that was saved quantized."""
    found = (getattr(c, "quantization_config", None) for c in (config, config.get_text_config()))
    saved = next((one for one in found if one is not None), None)
    if saved is None:
        return None
    values = saved if isinstance(saved, dict) else saved.to_dict()
    method = values.get("quant_method")
    if method is None and (values.get("load_in_8bit") or values.get("load_in_4bit")):
        return "bitsandbytes"
    return str(getattr(method, "value", method))


def is_of_a_package(served: ServedModel, config: Any) -> bool:
    """True where the weights' format decides the dtype to compute in; torchao's of 8 bits are
    computed in any.
    """
    method = "int8" if served.quantization is None else served.quantization["method"]
    return _saved_method(config) is not None or not method.startswith("int8")


def _torchao(method: str, arguments: dict[str, Any], device: torch.device) -> Any:
    from torchao import quantization as torchao
    from torchao.utils import should_reduce_range
    from transformers import TorchAoConfig

    if method == "int8":
        return TorchAoConfig(torchao.Int8WeightOnlyConfig(set_inductor_config=False), **arguments)
    if method == "int8_dynamic":
        dynamic = torchao.Int8DynamicActivationInt8WeightConfig(
            set_inductor_config=False, reduce_range=should_reduce_range(device)
        )
        return TorchAoConfig(dynamic, **arguments)
    _check_int4(device)
    int4 = torchao.Int4WeightOnlyConfig(
        group_size=arguments.pop("group_size", _INT4_GROUP_SIZE),
        int4_packing_format="tile_packed_to_4d",  # the only one that needs just torch
        set_inductor_config=False,
    )
    return TorchAoConfig(int4, **arguments)


def _check_int4(device: torch.device) -> None:
    if device.type != "cuda":
        raise LoadError(
            "quantization: int4 needs a GPU, and this instance runs on the CPU: "
            "bitsandbytes_4bit runs on both"
        )
    import torch

    capability = torch.cuda.get_device_capability(device)
    if capability < _INT4_CAPABILITY:
        got, needed = (".".join(map(str, one)) for one in (capability, _INT4_CAPABILITY))
        raise LoadError(
            f"quantization: int4 needs a GPU of compute capability {needed}, got {got}: "
            "bitsandbytes_4bit runs on it"
        )


def repair_quantized_model(model: Any) -> None:
    """Replaces layers that torchao can't compute. Raises LoadError where nothing is quantized."""
    from torch import nn

    if not any(type(one) is not nn.Parameter for one in model.parameters()):
        kind = type(model).__name__
        raise LoadError(
            f"quantization: {kind} has no layers that this method quantizes; "
            "bitsandbytes_8bit and bitsandbytes_4bit take more kinds"
        )
    for module in model.modules():
        # A Linear that rounds between product and bias, by an operator that torchao lacks.
        if type(module).__name__ == "FalconLinear":
            module.__class__ = nn.Linear
