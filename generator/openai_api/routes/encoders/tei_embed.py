"""``/embed``: embeddings as text-embeddings-inference answers them, a bare list of vectors."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from generator.openai_api.described import answers as described
from generator.openai_api.described.operation import Operation
from generator.openai_api.routes.encoders.embeddings import OPTIONS, VECTORS, embed, normal
from generator.openai_api.routes.encoders.endpoint import (
    FIELDS,
    Answers,
    Batch,
    Common,
    EncoderEndpoint,
    read_common,
    texts,
)
from generator.openai_api.schema import json_body
from generator.openai_api.schema.body import Body
from generator.openai_api.schema.json_body import only
from generator.openai_api.triton.catalog import EMBEDDING_TASKS, ServedModel

BODY = Body(
    {
        **FIELDS,
        **OPTIONS,
        "inputs": texts,
        "normalize": json_body.boolean,
        "truncation_direction": only("Right", "right"),
    },
    ("inputs",),
)


@dataclass(frozen=True)
class TeiRequest:
    """``normalizes`` where each vector has the length 1."""

    common: Common
    texts: list[str]
    normalizes: bool

    def batch(self, model: ServedModel) -> Batch:  # noqa: ARG002, as others
        """All texts."""
        return embed(self.texts, self.common.options, ("inputs",))

    def write(self, answers: Answers, answer_id: str) -> list[list[float]]:  # noqa: ARG002
        """The vectors."""
        rows: list[array[float]] = answers.rows[VECTORS]
        return [(normal(row) if self.normalizes else row).tolist() for row in rows]


def _read(body: Mapping[str, Any]) -> TeiRequest:
    """Without a word about it, that server cuts and normalizes."""
    common, given = read_common(body, BODY)
    options = {name: given[name] for name in OPTIONS if name in given}
    common = replace(common, options={"truncate": True, **common.options, **options})
    return TeiRequest(common, given["inputs"], given.get("normalize", True))


TEI_EMBED = EncoderEndpoint(
    *(("/embed",), EMBEDDING_TASKS, "embd-", _read),
    operation=Operation(
        "Texts to vectors, in text-embeddings-inference's shape", described.Vectors, BODY
    ),
)
