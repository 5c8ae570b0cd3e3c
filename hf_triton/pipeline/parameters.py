"""The parameters that a request may pass to the pipeline's call.

Only those that are known to be harmless: transformers' calls also take code to download
(``custom_generate``), other models, templates, worker processes and a command line for Tesseract.
Knows transformers' parameter names; knows no tensors.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import short
from hf_triton.runtime.request.tensors import kind_of

# The parameters of pipelines whose signature has only **kwargs for them.
_HIDDEN: dict[str, tuple[str, ...]] = {
    "zero-shot-classification": ("candidate_labels", "hypothesis_template", "multi_label"),
    "zero-shot-image-classification": ("candidate_labels", "hypothesis_template"),
    "zero-shot-audio-classification": ("candidate_labels", "hypothesis_template"),
    "zero-shot-object-detection": ("candidate_labels", "threshold", "top_k"),
    "object-detection": ("threshold",),
    "image-segmentation": (
        *("subtask", "threshold", "mask_threshold", "overlap_mask_area_threshold"),
    ),
    "mask-generation": (
        *("points_per_batch", "points_per_crop", "crops_n_layers", "crop_overlap_ratio"),
        *("crop_n_points_downscale_factor", "pred_iou_thresh", "stability_score_offset"),
        *("mask_threshold", "stability_score_thresh", "max_hole_area", "max_sprinkle_area"),
        *("crops_nms_thresh", "output_rle_mask", "output_bboxes_mask"),
    ),
}
_TOKENIZER = frozenset(
    ("truncation", "max_length", "padding", "add_special_tokens", "pad_to_multiple_of")
)
_IMAGE_PROCESSOR = frozenset(
    ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad", "do_convert_rgb")
)
# Named by a pipeline, but not for callers: addresses, templates, command lines, other processors.
_NOT_FOR_CALLERS = frozenset(
    (
        *("timeout", "tesseract_config", "processor_kwargs", "decoder_kwargs", "offset_mapping"),
        *("parameters", "ignore_warning"),
    )
)
_NOT_TO_GENERATE = frozenset(
    (
        *("inputs", "generation_config", "logits_processor", "stopping_criteria", "streamer"),
        *("prefix_allowed_tokens_fn", "synced_gpus", "assistant_model", "custom_generate"),
        *("negative_prompt_ids", "negative_prompt_attention_mask", "attention_mask"),
        *("force_unique_generate_call", "monitor_progress", "constraints", "cache_config"),
        *("cache_implementation", "compile_config", "continuous_batching_config", "is_assistant"),
        *("disable_compile", "transformers_version", "speculation_type", "watermarking_config"),
        *("return_dict_in_generate", "output_attentions", "output_hidden_states", "output_logits"),
        *("output_scores", "input_features", "input_values", "input_ids", "token_healing"),
    )
)
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


class CallParameters:
    """The parameters that one loaded pipeline takes, by name, and what nested objects may hold."""

    def __init__(self, name: str, pipe: Any) -> None:
        generation = _generation_names(pipe)
        self._pipeline = name
        self.names = frozenset(_top_level_names(name, pipe, generation))
        self._nested = {
            "generate_kwargs": generation,
            "forward_params": generation | _names(getattr(pipe.model, "forward", None)),
            "tokenizer_kwargs": _TOKENIZER,
            "tokenize_kwargs": _TOKENIZER,
            "tokenizer_encode_kwargs": _TOKENIZER,
            "image_processor_kwargs": _IMAGE_PROCESSOR,
            "preprocess_params": _TOKENIZER | {"voice_preset"},
        }

    def check(self, field: str, parameters: Mapping[str, Any]) -> None:
        """Raises RequestError for a name that the pipeline does not take, with the nearest one."""
        for name, value in parameters.items():
            self._check_name(field, name, self.names)
            allowed = self._nested.get(name)
            if allowed is None:
                continue
            if not isinstance(value, dict):
                raise RequestError(f"{field}: {name}: got {kind_of(value)}, allowed: an object")
            for inner, inner_value in value.items():
                self._check_name(f"{field}: {name}", inner, allowed)
                self._check_preset(f"{field}: {name}", inner, inner_value)

    def _check_name(self, field: str, name: str, allowed: frozenset[str]) -> None:
        if name in allowed:
            return
        nearest = difflib.get_close_matches(name, allowed, 1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"allowed: {_listed(allowed)}"
        raise RequestError(
            f"{field}: unknown parameter {short(name)} of the {self._pipeline} pipeline, {hint}"
        )

    def _check_preset(self, field: str, name: str, value: object) -> None:
        """Refuses a voice preset that is a file's name: Bark's processor would open the file."""
        if name == "voice_preset" and (not isinstance(value, str) or value.endswith(".npz")):
            raise RequestError(f"{field}: voice_preset must be the name of a preset of the model")


def _top_level_names(name: str, pipe: Any, generation: frozenset[str]) -> Iterable[str]:
    # What a pipeline takes is what this method of it names; there is no public list.
    signature = inspect.signature(pipe._sanitize_parameters)  # noqa: SLF001
    for parameter in signature.parameters.values():
        if parameter.kind not in _VARIADIC and parameter.name not in _NOT_FOR_CALLERS:
            yield parameter.name
        elif parameter.name == "generate_kwargs":
            yield from (*generation, "generate_kwargs")
        elif parameter.name == "tokenizer_kwargs" and parameter.kind in _VARIADIC:
            yield from _TOKENIZER
    yield from _HIDDEN.get(name, ())


def _generation_names(pipe: Any) -> frozenset[str]:
    """What ``generate`` takes of a caller: numbers, words and lists of them."""
    can_generate = getattr(pipe.model, "can_generate", None)
    if can_generate is None or not can_generate():
        return frozenset()
    from transformers import GenerationConfig

    found = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    found |= _names(pipe.model.generate)
    return frozenset(n for n in found - _NOT_TO_GENERATE if not n.startswith("assistant_"))


def _names(function: Any) -> frozenset[str]:
    if function is None:
        return frozenset()
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind not in _VARIADIC) - {
        "self",
        *_NOT_TO_GENERATE,
    }


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f", … ({len(shown)} in all)" if len(shown) > 20 else ""
    return ", ".join(shown[:20]) + more if shown else "none"
