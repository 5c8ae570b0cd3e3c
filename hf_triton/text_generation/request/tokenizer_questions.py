"""Answers questions to a model's tokenizer without the engine.

The parameter ``tokenizer`` is a JSON object whose ``ask`` is tokenize or detokenize; the answer
is a JSON object, the output ``text_output``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import read_list, read_object
from hf_triton.runtime.request.request_parameters import TOKENIZER_QUESTION
from hf_triton.runtime.request.tensors import RequestFields, kind_of, shown, text
from hf_triton.runtime.tokenizing.lengths import check_characters

from .parsing import CheckedRequest, PromptReader
from .row_options import read_rows

_Answer = Callable[[], dict[str, Any]]
# Gives the bytes of a question's files, and the function that decodes and answers. Both run on any
# thread, and raise RequestError.
Find = Callable[[], tuple[int, _Answer]]


@dataclass(frozen=True)
class TokenizerDesk:
    tokenizer: Any
    reader: PromptReader
    max_model_len: int

    def question(self, fields: RequestFields) -> tuple[int, Find] | None:
        """The characters of a request's question, and what answers it; None of a generation. Raises
        RequestError.
        """
        given = fields.parameters.pop(TOKENIZER_QUESTION, None)
        if given is None:
            return None
        asked = read_object(TOKENIZER_QUESTION, text(TOKENIZER_QUESTION, given))
        if asked.get("ask") == "tokenize" and "messages" in fields.inputs:
            rows = read_rows(fields, self.reader.fields)
            checked = CheckedRequest(rows, [], frozenset(), self.reader)
            return checked.num_characters, partial(self._of_chat, checked, asked)
        (found,) = fields.optional_texts("text_input")[:1]
        if found is None or asked.get("ask") not in ("tokenize", "detokenize"):
            allowed = "ask tokenize or detokenize with text_input, or tokenize with messages"
            raise RequestError(f"{TOKENIZER_QUESTION}: got another question, allowed: {allowed}")
        told = self._of_text if asked["ask"] == "tokenize" else self._detokenized
        answer = partial(told, found, asked)
        return len(found), lambda: (0, answer)

    @property
    def _most_tokens(self) -> int:
        """Above ``max_model_len``: a client may ask by how much its text is too long."""
        return 4 * self.max_model_len

    def _of_text(self, prompt: str, asked: dict[str, Any]) -> dict[str, Any]:
        added = asked.get("add_special_tokens")
        return self._answer(self._ids(prompt, add_special_tokens=added is not False), asked)

    def _of_chat(self, checked: CheckedRequest, asked: dict[str, Any]) -> tuple[int, _Answer]:
        """The tokens that a generation would read, also of a chat that is too long for one."""
        checked, num_bytes = checked.with_files()
        row, added = checked.rows[0], asked.get("add_special_tokens")
        if added is not None:
            row = {**row, "add_special_tokens": bool(added)}
        reader = replace(self.reader, tokenize=self._ids)
        return num_bytes, lambda: self._answer(reader.read_prompt(row).token_ids, asked)

    def _ids(
        self, prompt: str, *, add_special_tokens: bool = True, num_kept: int | None = None
    ) -> list[int]:
        """All tokens, however many of them a generation would keep."""
        check_characters("text_input", len(prompt), self._most_tokens)
        found = self.tokenizer(prompt, add_special_tokens=add_special_tokens, verbose=False)
        return list(found["input_ids"])

    def _answer(self, token_ids: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        wants = asked.get("return_token_strs")
        strings = self.tokenizer.convert_ids_to_tokens(token_ids) if wants else None
        counts = {"count": len(token_ids), "max_model_len": self.max_model_len}
        return {**counts, "tokens": token_ids, "token_strs": strings}

    def _detokenized(self, given: str, asked: dict[str, Any]) -> dict[str, Any]:
        token_ids, size = read_list("tokens", given), len(self.tokenizer)
        if len(token_ids) > self._most_tokens:
            raise RequestError(
                f"tokens: got {len(token_ids)}, allowed: at most {self._most_tokens}"
            )
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id < size:
                got = shown(token_id) if type(token_id) is int else kind_of(token_id)
                raise RequestError(f"tokens: got {got}, allowed: integers from 0 to {size - 1}")
        prompt = self.tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return {"prompt": prompt}
