"""``/v2/embed``: Cohere's embeddings, of texts, in several types at once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from generator.spec.task_sets import EMBEDDING_TASKS
from hf_triton.ports.openai.openapi_schema import answers as described
from hf_triton.ports.openai.openapi_schema.operation import Operation
from hf_triton.ports.openai.routes.encoders.embeddings import VECTORS, base64_of, embed
from hf_triton.ports.openai.routes.encoders.endpoint import (
    FIELDS,
    Answers,
    Batch,
    Common,
    EncoderEndpoint,
    read_common,
    texts,
)
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.request import TensorValue
from hf_triton.ports.openai.triton.catalog import ServedModel

# The model has a prompt for each, or none.
_INPUT_TYPES = ("search_document", "search_query", "classification", "clustering")
# Cohere cuts where nothing is said.
_TRUNCATE = {"END": True, "NONE": False}


@dataclass(frozen=True)
class EmbedRequest:
    """``types`` are those that the vectors are answered in."""

    common: Common
    texts: list[str]
    types: list[str]

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts."""
        other_names = {"dimensions": "output_dimension"}
        advice = {"truncate: true": 'truncate: "END"'}
        names = ("texts",)
        return embed(self.texts, self.common.options, names, other_names=other_names, advice=advice)

    def write(self, answers: Answers, answer_id: str) -> dict[str, Any]:
        """Cohere's object."""
        rows = answers.rows[VECTORS]
        return {
            "id": answer_id,
            "response_type": "embeddings_by_type",
            "embeddings": {kind: [_TYPES[kind](row) for row in rows] for kind in self.types},
            "texts": self.texts,
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": answers.num_tokens},
            },
        }


def _bits(row: array[float]) -> list[int]:
    """A bit for each number, 1 where it is above 0; eight to a byte, the first the highest."""
    bits = "".join("01"[number > 0] for number in row)
    return [int(bits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8)]


_TYPES: dict[str, Callable[[array[float]], Any]] = {
    "float": array.tolist,
    "base64": base64_of,
    "ubinary": _bits,
    "binary": lambda row: [byte - 128 for byte in _bits(row)],
}


@json_body.takes(type="array", items={"enum": [*_TYPES]})
def _types(name: str, value: Any) -> list[str]:
    given = json_body.texts(name, value)
    if not set(given) <= set(_TYPES):
        raise bad_field(name, "another text", ", ".join(_TYPES))
    return list(dict.fromkeys(given))


BODY = Body(
    {
        **FIELDS,
        "texts": texts,
        "input_type": json_body.one_of(*_INPUT_TYPES),
        "embedding_types": _types,
        "output_dimension": json_body.count,
        "truncate": json_body.one_of(*_TRUNCATE),
    },
    ("model", "texts"),
)


def _read(body: Mapping[str, Any]) -> EmbedRequest:
    common, given = read_common(body, BODY)
    options: dict[str, TensorValue] = {"truncate": _TRUNCATE[body.get("truncate") or "END"]}
    if body.get("output_dimension") is not None:
        options["dimensions"] = body["output_dimension"]
    use = {"input_type": body["input_type"]} if body.get("input_type") else {}
    return EmbedRequest(
        replace(common, options=options, parameters={**common.parameters, **use}),
        given["texts"],
        given.get("embedding_types") or ["float"],
    )


EMBED = EncoderEndpoint(
    *(("/v2/embed",), EMBEDDING_TASKS, "embd-", _read),
    operation=Operation("Texts to vectors, in Cohere's shape", described.CohereEmbeddings, BODY),
)
