"""A request's tensors and parameters as inputs for the pipeline's call.

Two steps: ``take`` copies what Triton holds, on Triton's thread; ``read`` decodes and checks it, on
one of ours. Only parameters that are known to be harmless pass: transformers' calls also take code
to download (``custom_generate``), other models, templates, worker processes and a command line for
Tesseract.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_json, read_object, short
from hf_triton.runtime.request.tensors import (
    RequestFields,
    check_labels,
    is_server_parameter,
    kind_of,
    text,
)

from .items import ItemReader, is_chat
from .pipeline_engine import PipelineInput

# Exactly one of these says what to compute; args and array_inputs are MLServer's names.
MAIN_INPUTS = ("inputs", "text_input", "args", "array_inputs", "image", "audio")
# Pipelines that take an image with a text: "prompt" ones and documents.
_COMPANIONS = ("text_pair", "question")
_OF_THE_CALL = ("candidate_labels", "hypothesis_template")
# A JSON object of call parameters; plain ones also come as request parameters.
PARAMETERS = "pipeline_parameters"
INPUTS = (*MAIN_INPUTS, *_COMPANIONS, *_OF_THE_CALL, PARAMETERS)

Row = Mapping[str, list[Any]]
Items = tuple[list[Any], bool]  # one, or a list of them


@dataclass(frozen=True)
class Query:
    """One JSON text of the answer: the result of one input, or the list of all results."""

    inputs: list[PipelineInput]
    is_list: bool


def take(fields: RequestFields) -> tuple[list[Row], dict[str, Any]]:
    """Copies a request: for each row the elements of each input, and the call's parameters. Raises
    RequestError where a value is given twice.
    """
    fields.count_rows(*INPUTS)
    found = {name: fields.raw_lists(name) for name in INPUTS}
    rows: list[Row] = [
        {name: lists[index] for name, lists in found.items() if lists[index]}
        for index in range(fields.num_rows)
    ]
    parameters = {
        name: value
        for name, value in fields.parameters.items()
        if name not in INPUTS and not is_server_parameter(name)
    }
    return rows, parameters


@dataclass(frozen=True)
class RequestReader:
    """Reads requests for one pipeline; ``defaults`` are the call parameters of models.yaml."""

    items: ItemReader
    call: CallParameters
    defaults: Mapping[str, Any]
    pipeline: str

    def read(self, row: Row, parameters: Mapping[str, Any]) -> list[Query]:
        """One row; ``parameters`` are the request's own, already checked by name."""
        call = self._call_parameters(row, parameters)
        found = self._items_of(row)
        if self.items.kind.main == "detection":
            labels = call.pop("candidate_labels", None)
            found = [([_labelled(one, labels) for one in items], many) for items, many in found]
        elif self.items.kind.needs_labels and not call.get("candidate_labels"):
            raise RequestError(f"candidate_labels: missing, {self.pipeline} needs them")
        key, places = json.dumps(call, sort_keys=True), itertools.count()
        is_one = sum(len(items) for items, _ in found) == 1
        return [
            Query(
                [
                    PipelineInput(item, call, key, "" if is_one else f"input {next(places)}: ")
                    for item in items
                ],
                is_list,
            )
            for items, is_list in found
        ]

    def _items_of(self, row: Row) -> list[Items]:
        given = [name for name in MAIN_INPUTS if name in row]
        main = self.items.kind.main
        if main in ("prompt", "document") and "image" in given:
            return [([self._with_images(row, given)], False)]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} are both given, send one of them")
        if not given:
            raise RequestError(
                f"inputs: missing, the {self.pipeline} pipeline needs {_WANTS[main]}"
            )
        takes_pair = self.items.kind.takes_pair and given[0] != "array_inputs"
        unused = [n for n in _COMPANIONS if n in row and not (takes_pair and n == "text_pair")]
        if unused:
            raise RequestError(f"{unused[0]}: can't be sent with {given[0]} to {self.pipeline}")
        if given[0] in ("image", "audio"):
            return self._media(given[0], row[given[0]])
        return [self._read_items(given[0], element, row) for element in row[given[0]]]

    def _with_images(self, row: Row, given: Sequence[str]) -> Any:
        """Images with a text, or one with a question: one input."""
        is_document = self.items.kind.main == "document"
        texts = [name for name in (*given, "question") if name in row and name != "image"]
        if len(texts) != 1 or texts[0] == "audio" or len(row[texts[0]]) != 1:
            wanted = "question" if is_document else "text_input"
            raise RequestError(f"{wanted}: send exactly one text with the image")
        words, images = text(texts[0], row[texts[0]][0]), row["image"]
        if not is_document:
            return self.items.item("image", {"text": words, "images": images})
        if len(images) != 1:
            raise RequestError(f"image: got {len(images)} images, allowed: one")
        return self.items.item("image", {"question": words, "image": images[0]})

    def _media(self, name: str, elements: Sequence[Any]) -> list[Items]:
        main = self.items.kind.main
        if main == "image_pair" and name == "image":
            return [([self.items.item(name, list(elements))], False)]
        fits = main == "audio" if name == "audio" else main in ("image", "detection")
        if not fits:
            raise RequestError(f"{name}: the {self.pipeline} pipeline takes {_WANTS[main]}")
        return [([self.items.item(name, element)], False) for element in elements]

    def _read_items(self, name: str, element: Any, row: Row) -> Items:
        value, kind = self._value(name, element), self.items.kind
        if "text_pair" in row:
            value = {"text": value, "text_pair": text("text_pair", row["text_pair"][0])}
        is_list = isinstance(value, list) and not (
            all(isinstance(one, str) for one in value)
            if kind.main == "image_pair"
            else kind.takes_chat and is_chat(value)
        )
        if not is_list:
            return [self.items.item(name, value)], False
        if not value:
            raise RequestError(f"{name}: an empty list, at least one input is required")
        items = [self.items.item(f"{name}[{index}]", one) for index, one in enumerate(value)]
        return items, True

    def _value(self, name: str, element: Any) -> Any:
        """JSON where the pipeline takes it so, else the text, or a file's bytes."""
        kind = self.items.kind
        head = element[:64].lstrip()[:1] if isinstance(element, bytes | str) else ""
        head = head.decode("latin-1") if isinstance(head, bytes) else head
        is_json = head in ("{", "[")
        if not is_json and name != "text_input" and kind.main in ("image", "audio"):
            return element
        words = text(name, element)
        if not is_json or name == "text_input":
            return words
        if kind.main not in ("text", "prompt"):
            return read_json(name, words)
        try:
            value = read_json("inputs", words)
        except RequestError:  # a text that is not JSON
            return words
        takes_object = kind.takes_pair or kind.main == "prompt"
        return value if isinstance(value, list) or takes_object else words

    def _call_parameters(self, row: Row, parameters: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for name in (name for name in _OF_THE_CALL if name in row):
            if name not in self.call.names:
                raise RequestError(f"{name}: the {self.pipeline} pipeline does not take it")
            values = [text(name, value) for value in row[name]]
            own[name] = values if name == "candidate_labels" else values[0]
        packed: dict[str, Any] = {}
        if PARAMETERS in row:
            packed = read_object(PARAMETERS, text(PARAMETERS, row[PARAMETERS][0]))
        self.call.check(PARAMETERS, packed)
        twice = set(packed) & {*own, *parameters}
        if twice:
            raise RequestError(f"{sorted(twice)[0]}: also given in {PARAMETERS}, send one of them")
        found = {**self.defaults, **parameters, **packed, **own}
        if isinstance(found.get("candidate_labels"), str):
            found["candidate_labels"] = found["candidate_labels"].split(",")
        if "candidate_labels" in found:
            found["candidate_labels"] = _labels(found["candidate_labels"])
        return found


def _labels(labels: Any) -> list[str]:
    listed = labels if isinstance(labels, list) else []
    found = [label.strip() if isinstance(label, str) else "" for label in listed]
    if not found or not all(found):
        raise RequestError("candidate_labels: must be texts, at least one and none empty")
    check_labels(found)
    return found


def _labelled(item: dict[str, Any], labels: list[str] | None) -> dict[str, Any]:
    own = item.get("candidate_labels")
    if own is not None and labels is not None:
        raise RequestError("candidate_labels: given twice, send one of them")
    if own is None and labels is None:
        raise RequestError("candidate_labels: missing, the pipeline needs them")
    return {**item, "candidate_labels": _labels(own if own is not None else labels)}


_WANTS: dict[str, str] = {
    "text": "a text",
    "image": "an image: image, or inputs in base64",
    "image_pair": "two images",
    "audio": "a sound: audio, or inputs in base64",
    "document": "an image and a question",
    "detection": "an image and candidate_labels",
    "prompt": "a text (text_input), alone or with image",
    "table": 'inputs as JSON: {"table", "query"}',
    "decision": 'inputs as JSON: {"state", "questions"}',
}


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
_SHOWN = 20
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
                is_name = isinstance(inner_value, str) and not inner_value.endswith(".npz")
                if inner == "voice_preset" and not is_name:  # Bark's processor would open a file
                    raise RequestError(
                        f"{field}: {name}: voice_preset must be the name of a preset of the model"
                    )

    def _check_name(self, field: str, name: str, allowed: frozenset[str]) -> None:
        if name in allowed:
            return
        nearest = difflib.get_close_matches(name, allowed, 1)
        listed = sorted(allowed)
        more = f", … ({len(listed)} in all)" if len(listed) > _SHOWN else ""
        known = ", ".join(listed[:_SHOWN]) + more if listed else "none"
        hint = f"did you mean {nearest[0]}?" if nearest else f"allowed: {known}"
        raise RequestError(
            f"{field}: unknown parameter {short(name)} of the {self._pipeline} pipeline, {hint}"
        )


def _top_level_names(name: str, pipe: Any, generation: frozenset[str]) -> Iterable[str]:
    # Only this method's signature names a pipeline's parameters; there is no public list.
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
    """Lists the arguments of ``generate`` that a caller may send: numbers, words and lists."""
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
