"""Loads a Hugging Face model from its files with transformers; a failure is one readable line.

model_files.py gets the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..devices.device import Placement, choose_attention_kernels, fastest_dtype, slowness
from ..errors import LoadError
from ..log import info, warn
from ..quick_imports import without_weights
from .hub_files import error_line
from .quantization import is_of_a_package, quantization_config, repair_quantized_model
from .served_model import ServedModel
from .untrusted_files import FROM_PACKAGES, read_headers, weight_bytes, within_files

# Read in training alone, or by a head that would be missing, too.
_UNREAD = re.compile(r"(^|\.)(pooler\.|masked_spec_embed$|mask_token$)")
_NUM_NAMED = 3
MOST_WORDS, _LONGEST_WORD = 2**16, 64  # some 20 MB


def load_config(served: ServedModel, files: Path, changes: Mapping[str, Any] | None = None) -> Any:
    """The model's transformers configuration with ``changes``, without kernels of attention that
    transformers would load from the Hub where their package is missing.
    """
    from transformers import AutoConfig

    if served.gguf_file is not None:
        import_module("gguf")
    config = load_part(served, AutoConfig, files, **changes or {})
    asked = set(_attention_kernels(config)).intersection(FROM_PACKAGES)
    if asked and not served.trust_remote_code:
        info(
            f"{served.name}: {min(asked)} of config.json is ignored: models.yaml decides what code "
            "runs"
        )
        config._attn_implementation = None  # noqa: SLF001, of nested configurations too
    return config


def _attention_kernels(config: Any) -> Iterator[Any]:
    """The attention functions that a configuration and its nested ones ask for."""
    yield getattr(config, "_attn_implementation", None)
    for name in getattr(config, "sub_configs", None) or ():
        yield from _attention_kernels(getattr(config, name, None))


def load_tokenizer(
    served: ServedModel, files: Path, changes: Mapping[str, Any] | None = None
) -> Any:
    from transformers import AutoTokenizer

    tokenizer = load_part(served, AutoTokenizer, files, "its tokenizer: ", **changes or {})
    if type(getattr(tokenizer, "cache", None)) is dict:
        tokenizer.cache = WordCache(tokenizer.cache)
    check_words(served, tokenizer)
    return tokenizer


def check_words(served: ServedModel, tokenizer: Any) -> None:
    """Raises LoadError for special tokens alone: transformers makes such without its files."""
    try:
        vocabulary = tokenizer.get_vocab()
    except (AttributeError, NotImplementedError):  # no tokenizer, or one without a vocabulary
        return
    special = set(tokenizer.all_special_ids)
    if all(word == "\u2581" or token_id in special for word, token_id in vocabulary.items()):
        missing = "tokenizer.json, or the files of its vocabulary, are missing"
        raise LoadError(f"{served.source}: its tokenizer has an empty vocabulary: {missing}")


class WordCache(dict[str, str]):
    """The word cache of a tokenizer written in Python: keeps only the first short words instead of
    every word any caller sends. Entries are never removed, because threads look up twice.
    """

    def __setitem__(self, word: str, pieces: str) -> None:
        if len(self) < MOST_WORDS and len(word) <= _LONGEST_WORD:
            super().__setitem__(word, pieces)


def load_model(
    served: ServedModel, files: Path, auto_class: Any, config: Any, placement: Placement
) -> Any:
    """The torch module, to evaluate: in its dtype, on its device or spread by ``device_map``.
    Raises LoadError: transformers can't load it, or the files lack weights of it.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a log would get a line for each update
    choose_attention_kernels(placement.device)
    device_map = None if placement.device_map == {"": "cpu"} else placement.device_map
    dtype = _dtype(served, files, config, placement, read_headers(served.source, files))
    options = {"config": config, "dtype": dtype, **_quantized(served, config, placement)}
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # check_report's
    with within_files(files):
        model, report = load_part(served, auto_class, files, device_map=device_map, **options)
    check_report(served, model, report)
    if served.gguf_file is not None:  # its blocks are plain numbers now
        model.hf_quantizer = None
        for described in (model.config, model.config.get_text_config()):
            vars(described).pop("quantization_config", None)
    elif "quantization_config" in options:
        repair_quantized_model(model)
    return model.eval()


def _dtype(
    served: ServedModel, files: Path, config: Any, placement: Placement, saved_in_files: Any
) -> Any:
    """The torch dtype to load in; logs a line where there was a choice."""
    import torch

    is_ours = placement.device == "cpu" and not is_of_a_package(served, config)
    if served.dtype != "auto":
        dtype = getattr(torch, served.dtype)
        if is_ours and (why := slowness(dtype)):
            warn(f"{served.name}: dtype: {served.dtype} is slow on this processor: {why}")
        return dtype
    if served.gguf_file is not None:  # its files name none to compute in
        return torch.float32 if placement.device == "cpu" else torch.bfloat16
    saved = _configured_dtype(config) or saved_in_files
    if not is_ours or saved is None:
        return resolve_dtype(served.dtype, config, placement.device)
    dtype, why = fastest_dtype(saved, weight_bytes(files))
    if why:
        name, saved_name = (str(one).removeprefix("torch.") for one in (dtype, saved))
        saved_in = "as" if dtype == saved else f"and not in {saved_name}, as"
        info(f"{served.name}: computes in {name}, {saved_in} its weights are: {why}")
    return dtype


def _quantized(served: ServedModel, config: Any, placement: Placement) -> dict[str, Any]:
    import torch

    quantization = quantization_config(served, config, torch.device(placement.device))
    if quantization is None:
        return {}
    int4 = served.quantization is not None and served.quantization["method"] == "int4"
    return {"quantization_config": quantization, **({"dtype": torch.bfloat16} if int4 else {})}


def load_without_weights(served: ServedModel, auto_class: Any, config: Any) -> Any:
    """The torch module; raises LoadError as ``load_model``."""
    with _failing_in_one_line(served), without_weights():
        return auto_class.from_config(config, trust_remote_code=served.trust_remote_code)


def resolve_dtype(dtype: str, config: Any, device: str) -> Any:
    """The dtype to load in: ``auto`` is the checkpoint's, but float32 for float16 on a CPU."""
    import torch

    if dtype != "auto":
        return getattr(torch, dtype)
    stored = _configured_dtype(config)
    if stored is None:
        return "auto"
    return torch.float32 if device == "cpu" and stored == torch.float16 else stored


def _configured_dtype(config: Any) -> Any:
    """The torch dtype that a configuration names for its weights, or None."""
    import torch

    stored = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    return getattr(torch, stored, None) if isinstance(stored, str) else stored


def load_part(
    served: ServedModel, auto_class: Any, files: Path, part: str = "", **options: Any
) -> Any:
    """Loads the files with a class of transformers; ``part`` names its result in an error."""
    if served.gguf_file is not None:
        options["gguf_file"] = served.gguf_file
    with _failing_in_one_line(served, part):
        return auto_class.from_pretrained(
            files, local_files_only=True, trust_remote_code=served.trust_remote_code, **options
        )


@contextmanager
def _failing_in_one_line(served: ServedModel, part: str = "") -> Iterator[None]:
    """Turns all that transformers raises, and a panic of Rust code, into a LoadError."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"{served.source}: {error}") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if "trust_remote_code" in str(error) and not served.trust_remote_code:
            raise LoadError(
                f"{served.source} brings its own Python code: read it, and set trust_remote_code: "
                "true to allow it"
            ) from error
        raise LoadError(f"{served.source}: {part}{error_line(error)}") from error


def check_report(served: ServedModel, model: Any, report: Mapping[str, Any]) -> None:
    """Refuses random weights, unless ``allow_missing_weights``; logs unused tensors of the files.

    Transformers fills what is missing with random numbers and only warns: such a model would answer
    otherwise at each start. What transformers ties or computes itself is not in its report, and
    buffers come out of their code alike each time. Raises LoadError: names the first tensors that
    the files lack, or have in another shape.
    """
    every = (name for name, _ in model.named_parameters(remove_duplicate=False))
    missing = [n for n in every if n in report["missing_keys"] and not _UNREAD.search(n)]
    mismatched = [
        f"{name} {list(found)} for {list(wanted)}"
        for name, found, wanted in sorted(report["mismatched_keys"])
    ]
    problems = [f"has no weights for {_listed(missing)}"] if missing else []
    problems += [f"has weights of another shape: {_listed(mismatched)}"] if mismatched else []
    if problems and not served.allow_missing_weights:
        raise LoadError(
            f"{served.source} {' and '.join(problems)}: {_kind_of(served, model)}; "
            "allow_missing_weights: true uses random numbers instead"
        )
    for problem in problems:
        warn(f"{served.name}: {served.source} {problem}: they are random numbers")
    # A pipeline of a model without a head answers what the pooler makes, where a request asks.
    is_random = any(name.startswith("pooler.") for name in report["missing_keys"])
    if is_random and served.task == "pipeline" and not served.allow_missing_weights:
        model.pooler = None
    if report["unexpected_keys"]:
        unused = _listed(sorted(report["unexpected_keys"]))
        info(f"{served.name}: unused tensors of the files: {unused}")


def _kind_of(served: ServedModel, model: Any) -> str:
    """Describes a model whose weights do not fit its task."""
    saved_as = (getattr(model.config, "architectures", None) or [""])[0]
    if served.task == "text-classification" and saved_as.endswith("ForCausalLM"):
        return (
            f"it is a decoder ({saved_as}) without a classifier, and rerankers that score a pair "
            "by the logit of a word, as sentence-transformers' LogitScore, are not served"
        )
    return f"it is not a model for {served.task}, or its files are incomplete"


def _listed(names: list[str]) -> str:
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")


def load_processor(served: ServedModel, files: Path) -> Any:
    """The model's processor: of text, and of images or sounds."""
    from transformers import AutoProcessor

    leave_out_videos()
    processor = load_part(served, AutoProcessor, files, part="its processor: ")
    check_words(served, getattr(processor, "tokenizer", None))
    return processor


@cache
def leave_out_videos() -> None:
    """Makes processors have no part for videos from here on, if torchvision is not installed."""
    if find_spec("torchvision") is not None:
        return
    from transformers import ProcessorMixin
    from transformers.models.auto.video_processing_auto import AutoVideoProcessor

    patched: Any = AutoVideoProcessor
    checked: Any = ProcessorMixin
    check = checked.check_argument_for_proper_class

    def check_all_but_videos(self: Any, name: str, argument: Any) -> Any:
        is_left_out = name == "video_processor" and argument is None
        return None if is_left_out else check(self, name, argument)

    patched.from_pretrained = lambda *args, **kwargs: None
    checked.check_argument_for_proper_class = check_all_but_videos
