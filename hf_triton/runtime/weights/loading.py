"""Loads a Hugging Face model from its files with transformers; a failure is one readable line.

model_files.py gets the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..devices.device import Placement, choose_attention_kernels
from ..errors import LoadError, is_panic
from ..log import info
from ..tokenizing.guarded import guard
from ..tokenizing.trust import check_growth
from .added_tokens import tell_dropped_tokens
from .config_rules import FROM_PACKAGES
from .hub_token import error_line
from .missing import check_report
from .quantization import quantization_config, repair_quantized_model, weights_line
from .served_model import ServedModel

_MOST_WORDS, _LONGEST_WORD = 2**16, 64  # some 20 MB


def load_config(served: ServedModel, files: Path) -> Any:
    """The model's transformers configuration, without kernels of attention that transformers would
    load from the Hub where their package is missing.
    """
    from transformers import AutoConfig

    config = load_part(served, AutoConfig, files)
    asked = set(_attention_kernels(config)).intersection(FROM_PACKAGES)
    if asked and not served.trust_remote_code:
        info(f"{served.name}: {min(asked)} of config.json is left out: models.yaml decides on code")
        config._attn_implementation = None  # noqa: SLF001, of nested configurations too
    return config


def _attention_kernels(config: Any) -> Iterator[Any]:
    """Those that a configuration and those within it ask for."""
    yield getattr(config, "_attn_implementation", None)
    for name in getattr(config, "sub_configs", None) or ():
        yield from _attention_kernels(getattr(config, name, None))


def load_tokenizer(served: ServedModel, files: Path) -> Any:
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    check_growth(files)
    tokenizer = load_part(served, AutoTokenizer, files, part="its tokenizer: ")
    if type(getattr(tokenizer, "cache", None)) is dict:
        tokenizer.cache = WordCache(tokenizer.cache)
    tell_dropped_tokens(served, files, tokenizer)
    guard(tokenizer)
    return tokenizer


class WordCache(dict[str, str]):
    """What a tokenizer that is written in Python knows of words: the first short ones, where it
    would keep each that any caller sends. Nothing is taken out: threads look twice.
    """

    def __setitem__(self, word: str, pieces: str) -> None:
        if len(self) < _MOST_WORDS and len(word) <= _LONGEST_WORD:
            super().__setitem__(word, pieces)


def load_model(
    served: ServedModel, files: Path, auto_class: Any, config: Any, placement: Placement
) -> Any:
    """The torch module, to evaluate: in its dtype, on its device or spread by ``device_map``.

    Raises:
        LoadError: transformers can't load it, or the files lack weights of it.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # in a log, each of its states would be a line
    choose_attention_kernels(placement.device)
    device_map = None if placement.device_map == {"": "cpu"} else placement.device_map
    dtype = resolve_dtype(served.dtype, config, placement.device)
    options = {"config": config, "dtype": dtype, **_quantized(served, config, placement)}
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # check_report's
    with within_files(served, files):
        model, report = load_part(served, auto_class, files, device_map=device_map, **options)
    check_report(served, model, report)
    if "quantization_config" in options:
        repair_quantized_model(model)
    if getattr(model, "hf_quantizer", None) is not None:
        info(f"{served.name}: {weights_line(model)}")
    return model.eval()


def within_files(served: ServedModel, files: Path) -> Any:
    """A context in which no model is made that is many times larger than its files.

    Raises:
        LoadError: the files of weights are broken.
    """
    from .declared_size import WithinFiles

    try:
        return WithinFiles(files)
    except LoadError as error:
        raise LoadError(f"{served.source}: {error}") from None


def _quantized(served: ServedModel, config: Any, placement: Placement) -> dict[str, Any]:
    """Further arguments of ``from_pretrained`` if the weights are to be quantized."""
    import torch

    quantization = quantization_config(served, config, torch.device(placement.device))
    if quantization is None:
        return {}
    int4 = served.quantization is not None and served.quantization["method"] == "int4"
    return {"quantization_config": quantization, **({"dtype": torch.bfloat16} if int4 else {})}


def load_on_meta_device(served: ServedModel, auto_class: Any, config: Any) -> Any:
    """The torch module on the meta device, without weights: enough to inspect its layers.

    Raises:
        LoadError: as ``load_model``.
    """
    import torch

    try:
        with torch.device("meta"):
            return auto_class.from_config(config, trust_remote_code=served.trust_remote_code)
    except LoadError as error:
        raise LoadError(f"{served.source}: {error}") from None
    except Exception as error:
        # Transformers raises many types; the operator gets one line for any of them.
        raise LoadError(f"{served.source}: {error_line(error)}") from error


def resolve_dtype(dtype: str, config: Any, device: str) -> Any:
    """The torch dtype to load in. ``auto`` is the checkpoint's; on a CPU, which lacks float16, it
    is float32 for a float16 checkpoint.
    """
    import torch

    if dtype != "auto":
        return getattr(torch, dtype)
    stored = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    if isinstance(stored, str):
        stored = getattr(torch, stored, None)
    if stored is None:
        return "auto"
    return torch.float32 if device == "cpu" and stored == torch.float16 else stored


def load_part(
    served: ServedModel, auto_class: Any, files: Path, part: str = "", **options: Any
) -> Any:
    """What a class of transformers makes of the files; ``part`` names it where that fails."""
    try:
        return auto_class.from_pretrained(
            files, local_files_only=True, trust_remote_code=served.trust_remote_code, **options
        )
    except LoadError as error:
        raise LoadError(f"{served.source}: {error}") from None
    except BaseException as error:
        # Transformers raises many types; the operator gets one line for any of them.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if "trust_remote_code" in str(error) and not served.trust_remote_code:
            raise LoadError(
                f"{served.source} runs code of its own: read it, and set trust_remote_code: true "
                "to allow it"
            ) from error
        raise LoadError(f"{served.source}: {part}{error_line(error)}") from error
