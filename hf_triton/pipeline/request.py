"""A request's tensors and parameters as inputs for the pipeline's call.

Two steps: ``take`` copies what Triton holds, on Triton's thread; ``read`` decodes and checks it, on
one of ours. Knows what each input of the config means; knows neither the engine nor Triton.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_json, read_object
from hf_triton.runtime.request.tensors import RequestFields, check_labels, is_server_parameter, text

from .calling import PipelineInput
from .items import ItemReader, is_chat
from .parameters import CallParameters

# Exactly one of these says what to compute; args and array_inputs are MLServer's names.
MAIN_INPUTS = ("inputs", "text_input", "args", "array_inputs", "image", "audio")
# Pipelines that take an image with a text: "prompt" ones and documents.
_COMPANIONS = ("text_pair", "question")
_OF_THE_CALL = ("candidate_labels", "hypothesis_template")
# A JSON object of call parameters; plain ones also come as request parameters.
PARAMETERS = "pipeline_parameters"
INPUTS = (*MAIN_INPUTS, *_COMPANIONS, *_OF_THE_CALL, PARAMETERS)

Row = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Taken:
    """A request's inputs: for each row the elements of each input."""

    rows: Sequence[Row]
    parameters: dict[str, Any]
    num_bytes: int


@dataclass(frozen=True)
class Query:
    """One JSON text of the answer: the result of one item, or the list of all results."""

    items: list[Any]
    is_list: bool


@dataclass(frozen=True)
class ReadRow:
    """A row's queries, and the parameters of its call."""

    queries: list[Query]
    parameters: dict[str, Any]

    def inputs(self) -> list[PipelineInput]:
        """The items of all queries, each with what the call needs."""
        items = [item for query in self.queries for item in query.items]
        key = json.dumps(self.parameters, sort_keys=True)
        return [
            PipelineInput(item, self.parameters, key, f"input {n}: " if len(items) > 1 else "")
            for n, item in enumerate(items)
        ]


def take(fields: RequestFields) -> Taken:
    """Copies a request; raises RequestError where a value is given twice."""
    fields.count_rows(*INPUTS)
    found = {name: fields.raw_lists(name) for name in INPUTS}
    rows = [
        {name: lists[index] for name, lists in found.items() if lists[index]}
        for index in range(fields.num_rows)
    ]
    parameters = {
        name: value
        for name, value in fields.parameters.items()
        if name not in INPUTS and not is_server_parameter(name)
    }
    num_bytes = sum(len(v) for row in rows for values in row.values() for v in values)
    return Taken(rows, parameters, num_bytes)


class RequestReader:
    """Reads requests for one pipeline; ``defaults`` are the call parameters of models.yaml."""

    def __init__(
        self, items: ItemReader, call: CallParameters, defaults: Mapping[str, Any], name: str
    ) -> None:
        self._items, self._call, self._defaults = items, call, dict(defaults)
        self._pipeline = name

    def read(self, row: Row, parameters: Mapping[str, Any]) -> ReadRow:
        """One row; ``parameters`` are the request's own, already checked by name."""
        call = self._call_parameters(row, parameters)
        queries = self._queries(row)
        if self._items.kind.main == "detection":
            labels = call.pop("candidate_labels", None)
            queries = [Query([_labelled(i, labels) for i in q.items], q.is_list) for q in queries]
        elif self._items.kind.needs_labels and not call.get("candidate_labels"):
            raise RequestError(f"candidate_labels: missing, {self._pipeline} needs them")
        return ReadRow(queries, call)

    def _queries(self, row: Row) -> list[Query]:
        given = [name for name in MAIN_INPUTS if name in row]
        main = self._items.kind.main
        if main in ("prompt", "document") and "image" in given:
            return [self._with_images(row, given)]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} are both given, send one of them")
        if not given:
            raise RequestError(
                f"inputs: missing, the {self._pipeline} pipeline needs {_wants(main)}"
            )
        unused = [name for name in _COMPANIONS if name in row and name != self._companion(given[0])]
        if unused:
            raise RequestError(f"{unused[0]}: not taken with {given[0]} by {self._pipeline}")
        if given[0] in ("image", "audio"):
            return self._media(given[0], row[given[0]])
        return [self._query(given[0], element, row) for element in row[given[0]]]

    def _companion(self, source: str) -> str | None:
        return "text_pair" if self._items.kind.takes_pair and source != "array_inputs" else None

    def _with_images(self, row: Row, given: Sequence[str]) -> Query:
        """Images with a text, or one with a question: one input."""
        is_document = self._items.kind.main == "document"
        word = "question" if is_document else "text"
        texts = [name for name in given if name != "image"] + ["question"] * ("question" in row)
        if len(texts) != 1 or texts[0] == "audio" or len(row[texts[0]]) != 1:
            wanted = "question" if is_document else "text_input"
            raise RequestError(f"{wanted}: send exactly one text with the image")
        words = text(texts[0], row[texts[0]][0])
        images: Any = row["image"][0] if is_document else row["image"]
        if is_document and len(row["image"]) != 1:
            raise RequestError(f"image: got {len(row['image'])} images, allowed: one")
        return Query([self._items.item("image", {word: words, "image": images})], False)

    def _media(self, name: str, elements: Sequence[Any]) -> list[Query]:
        main = self._items.kind.main
        if main == "image_pair" and name == "image":
            return [Query([self._items.item(name, list(elements))], False)]
        fits = main == "audio" if name == "audio" else main in ("image", "detection")
        if not fits:
            raise RequestError(f"{name}: the {self._pipeline} pipeline takes {_wants(main)}")
        return [Query([self._items.item(name, element)], False) for element in elements]

    def _query(self, name: str, element: Any, row: Row) -> Query:
        value = self._value(name, element)
        if "text_pair" in row:
            pair = text("text_pair", row["text_pair"][0])
            return Query([self._items.item(name, {"text": value, "text_pair": pair})], False)
        if not isinstance(value, list) or self._is_one(value):
            return Query([self._items.item(name, value)], False)
        if not value:
            raise RequestError(f"{name}: an empty list, at least one input is required")
        items = [self._items.item(f"{name}[{index}]", one) for index, one in enumerate(value)]
        return Query(items, True)

    def _is_one(self, value: list[Any]) -> bool:
        """Whether a JSON list is one input: a chat, or a pair of images."""
        if self._items.kind.main == "image_pair":
            return all(isinstance(one, str) for one in value)
        return self._items.kind.takes_chat and is_chat(value)

    def _value(self, name: str, element: Any) -> Any:
        """JSON where the pipeline takes it so, else the text, or a file's bytes."""
        kind = self._items.kind
        head = element[:64].lstrip()[:1] if isinstance(element, bytes | str) else ""
        head = head.decode("latin-1") if isinstance(head, bytes) else head
        takes_text = kind.main in ("text", "prompt")
        if name == "text_input":
            return text(name, element)
        if head not in ("{", "["):
            return text(name, element) if kind.main not in ("image", "audio") else element
        if not takes_text:
            return read_json(name, text(name, element))
        return self._structured(text(name, element))

    def _structured(self, words: str) -> Any:
        """A text that is JSON of the form that the pipeline takes; any other text as it is."""
        try:
            value = read_json("inputs", words)
        except RequestError:
            return words
        takes_object = self._items.kind.takes_pair or self._items.kind.main == "prompt"
        return value if isinstance(value, list) or takes_object else words

    def _call_parameters(self, row: Row, parameters: Mapping[str, Any]) -> dict[str, Any]:
        own = self._of_the_call(row)
        packed: dict[str, Any] = {}
        if PARAMETERS in row:
            packed = read_object(PARAMETERS, text(PARAMETERS, row[PARAMETERS][0]))
        self._call.check(PARAMETERS, packed)
        twice = set(packed) & {*own, *parameters}
        if twice:
            raise RequestError(f"{sorted(twice)[0]}: also given in {PARAMETERS}, send one of them")
        found = {**self._defaults, **parameters, **packed, **own}
        if isinstance(found.get("candidate_labels"), str):
            found["candidate_labels"] = found["candidate_labels"].split(",")
        if "candidate_labels" in found:
            found["candidate_labels"] = _labels(found["candidate_labels"])
        return found

    def _of_the_call(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in _OF_THE_CALL:
            if name not in row:
                continue
            if name not in self._call.names:
                raise RequestError(f"{name}: the {self._pipeline} pipeline does not take it")
            values = [text(name, value) for value in row[name]]
            found[name] = values if name == "candidate_labels" else values[0]
        return found


def _labels(labels: Any) -> list[str]:
    listed = labels if isinstance(labels, list) else []
    found = [label.strip() if isinstance(label, str) else "" for label in listed]
    if not found or not all(found):
        raise RequestError("candidate_labels: must be texts, at least one and none empty")
    check_labels(found)
    return found


def _labelled(item: dict[str, Any], labels: list[str] | None) -> dict[str, Any]:
    """An image with the labels to look for, its own or the request's."""
    own = item.get("candidate_labels")
    if own is not None and labels is not None:
        raise RequestError("candidate_labels: given twice, send one of them")
    if own is None and labels is None:
        raise RequestError("candidate_labels: missing, the pipeline needs them")
    return {**item, "candidate_labels": _labels(own if own is not None else labels)}


def _wants(main: str) -> str:
    """Describes one input for the caller's error."""
    return {
        "text": "a text",
        "image": "an image: image, or inputs in base64",
        "image_pair": "two images",
        "audio": "a sound: audio, or inputs in base64",
        "document": "an image and a question",
        "detection": "an image and candidate_labels",
        "prompt": "a text (text_input), alone or with image",
        "table": 'inputs as JSON: {"table", "query"}',
        "decision": 'inputs as JSON: {"state", "questions"}',
    }[main]
