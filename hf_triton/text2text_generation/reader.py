"""Reads a request's rows for an encoder-decoder: languages, prefix, truncation, beams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import shown
from hf_triton.text_generation.request.parsing import Prompt, PromptReader, require_no_beams
from hf_triton.text_generation.request.row_options import RowFields
from hf_triton.text_generation.request.sampling_json import lenient_boolean
from hf_triton.text_generation.sequence.request_options import OPTIONS
from hf_triton.text_generation.structured.constraint import Constraint

from .languages import Languages
from .source import SourceTokenizer

_FIELDS = RowFields(
    ("text_input",), ("source_lang", "target_lang"), {"truncate": (lenient_boolean, None)}
)


@dataclass(frozen=True)
class SourceReader(PromptReader):
    """Parses requests for one encoder-decoder. ``beams`` is the option ``num_beams``."""

    fields: ClassVar[RowFields] = _FIELDS

    source: SourceTokenizer = field(kw_only=True)
    languages: Languages = field(kw_only=True)
    prefix: str = field(kw_only=True)
    truncation: bool = field(kw_only=True)
    beams: int = field(kw_only=True)

    def read_prompt(self, row: dict[str, Any]) -> Prompt:
        text, languages, target = row["text_input"], self.languages, row["target_lang"] or None
        if not text.strip():
            raise RequestError("text_input: got white space alone, a text is required")
        if row["add_special_tokens"] is False:
            raise RequestError("add_special_tokens: got false, this model's texts have them")
        special_tokens = languages.special_tokens_for(row["source_lang"] or None)
        start = languages.decoder_start(target)
        read = languages.marked(text, target) if languages.marks else text
        truncate = self.truncation if row["truncate"] is None else row["truncate"]
        return Prompt(
            text, self.source.encode(self.prefix + read, special_tokens, truncate=truncate), start
        )

    def num_beams(self, row: dict[str, Any]) -> int:
        asked = row["beam_width"]
        if self.beams == 1 or asked == 1:
            require_no_beams(row)
            return 1
        if asked not in (None, self.beams):
            raise RequestError(f"beam_width: got {shown(asked)}, allowed: 1 or {self.beams}")
        # Several options become one constraint.
        neutral = {name: option.neutral for name, option in OPTIONS.items() if option.neutral}
        for name, values in {**neutral, "constraint": (None,)}.items():
            if (got := row[name]) not in values:
                asks = got.kind if isinstance(got, Constraint) else name
                raise RequestError(
                    f"{asks}: this model answers by a search with {self.beams} beams, which can't "
                    "do that; send beam_width 1 to have it"
                )
        return self.beams
