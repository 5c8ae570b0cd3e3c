"""A Triton request to the generations it asks for, one per row, checked field by field. Knows no
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.json_text import MAX_CHARACTERS, read_list, read_object, short
from hf_triton.runtime.request.tensors import RequestFields, each_row, shown, timeout_ms
from hf_triton.runtime.tokenizing.lengths import check_characters

from ..sequence.request_options import FILTERS, OPTIONS
from ..sequence.sampling_params import SamplingParams, check_range
from ..sequence.sequence import DecoderStart, Sequence
from ..sequence.source import Source, text_source
from ..structured.constraint import Constraint
from .answer import OUTPUTS, wanted_outputs
from .chat import ChatTemplate, ReasoningTokens
from .chat_formats import ChatFormat
from .row_options import CHAT_FIELDS, RowFields, read_rows

_RETURN = "return_"
_LOGPROBS = frozenset(("logprobs", "cumulative_logprob"))
_PARAMS = [one.name for one in fields(SamplingParams)]
MAX_LOGPROBS_TOGETHER = 2**22  # of a request: half a gigabyte while they are collected
NUM_SPELLINGS = 4  # of each bad word: that often it is tokenised
_CHAT_CHARACTERS = 2**14  # of a chat, whose rendering does not depend on its size alone
# Stands for max_tokens until the prompt's length is known; larger than any min_tokens.
_UNKNOWN = 2**63


@dataclass(frozen=True)
class Prompt:
    """A row as the model reads it. ``text`` is empty where the row gave token ids. An encoder
    reads ``source`` beside the tokens; with ``decoder_start`` it reads the tokens themselves.
    """

    text: str
    token_ids: list[int]
    decoder_start: DecoderStart | None = None
    source: Source | None = None


@dataclass(frozen=True)
class Generation:
    """One row of a request, whose ``options`` are by name, such as ``n`` and ``cache_salt``. Where
    its caller asks for the ``chat_format`` of the answer, the text keeps the special tokens
    ``kept_token_ids``, and ``reasoning_tokens`` counts those of its reasoning.
    """

    options: Mapping[str, Any]
    prompt: Prompt
    params: SamplingParams
    chat_format: ChatFormat | None
    kept_token_ids: frozenset[int]
    reasoning_tokens: ReasoningTokens | None


@dataclass(frozen=True)
class GenerationRequest:
    """``rows`` all have the same ``n``; ``outputs`` are those that the caller wants."""

    rows: list[Generation]
    outputs: frozenset[str]
    stream: bool

    @property
    def constraints(self) -> list[Constraint]:
        found = (row.params.constraint for row in self.rows)
        return list(dict.fromkeys(constraint for constraint in found if constraint))


@dataclass(frozen=True)
class PromptReader:
    """Reads prompts of one model and engine; a task with fields of its own extends it.

    ``tokenize(text, add_special_tokens=True, num_kept=None)`` may give the last ``num_kept`` tokens
    alone; ``output_length`` and ``check_length`` are the engine's. ``tokenize_word`` gives the
    token sequences that spell a word.
    """

    fields: ClassVar[RowFields] = CHAT_FIELDS
    max_json_characters: ClassVar[int] = MAX_CHARACTERS

    tokenize: Callable[..., list[int]]
    output_length: Callable[..., int]
    check_length: Callable[[int, int], None]
    tokenize_word: Callable[[str], list[tuple[int, ...]]]
    chat: ChatTemplate = field(default_factory=lambda: ChatTemplate(None))
    default_repetition_penalty: float = 1.0
    default_min_tokens: int = 0
    default_timeout_ms: int | None = None
    max_timeout_ms: int | None = None
    vocab_size: int | None = None
    max_model_len: int | None = None
    decoder_start: DecoderStart | None = None
    adapters: Collection[str] = ()
    special_token_ids: Mapping[str, int] = field(default_factory=dict)

    def read_prompt(self, row: dict[str, Any]) -> Prompt:
        """Raises RequestError."""
        text, adds = row["text_input"], row["add_special_tokens"]
        if row["messages"]:
            text, adds = self.rendered(row, self.read_messages(row)), bool(adds)
        token_ids = self.tokenize(text, add_special_tokens=adds is not False)
        return Prompt(text, token_ids, self.decoder_start)

    def find_files(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with its files as ``items``, where the model takes any."""
        return row

    def of_token_ids(self, row: dict[str, Any]) -> Prompt:
        """The prompt of a row with token ids. Raises RequestError."""
        token_ids: list[int] = row["input_ids"]
        for token_id in (min(token_ids), max(token_ids)):
            if token_id < 0 or (self.vocab_size is not None and token_id >= self.vocab_size):
                allowed = "0 and more" if self.vocab_size is None else f"0 to {self.vocab_size - 1}"
                raise RequestError(f"input_ids: got token {shown(token_id)}, allowed: {allowed}")
        return Prompt("", token_ids)

    def read_messages(self, row: dict[str, Any]) -> list[Any]:
        """A row's chat, of which nothing but its length is checked. Raises RequestError."""
        messages = read_list("messages", row["messages"], self.max_json_characters)
        if self.max_model_len is not None and len(messages) > self.max_model_len:
            raise RequestError(
                f"messages: got {len(messages)}, allowed: at most {self.max_model_len}, as many as "
                "this model's context holds tokens"
            )
        return messages

    def rendered(self, row: dict[str, Any], messages: list[Any]) -> str:
        """The prompt of a row's chat. Raises RequestError."""
        tools = read_list("tools", row["tools"]) if row["tools"] else None
        if tools and self.max_model_len is not None:
            check_characters("tools", len(row["tools"]), self.max_model_len)
        kwargs = row["chat_template_kwargs"]
        kwargs = read_object("chat_template_kwargs", kwargs) if kwargs else {}
        return self.chat.render(messages, tools, kwargs)

    def check_adapter(self, row: dict[str, Any]) -> None:
        """Raises RequestError for an unknown adapter."""
        name: str = row.get("lora_name") or ""
        if name and name not in self.adapters:
            allowed = ", ".join(self.adapters) or "none: this model has no adapters"
            raise RequestError(f"lora_name: got {short(name)}, allowed: {allowed}")

    def num_beams(self, row: dict[str, Any]) -> int:
        require_no_beams(row)
        return 1


@dataclass(frozen=True)
class CheckedRequest:
    """A request of which all is checked but its prompts and words, which are texts still."""

    rows: list[dict[str, Any]]
    params: list[SamplingParams]
    outputs: frozenset[str]
    reader: PromptReader

    @property
    def num_characters(self) -> int:
        """The characters to read; each of ``bad_words`` counts as often as it is tokenised."""
        of_chats = _CHAT_CHARACTERS * sum(bool(row.get("messages")) for row in self.rows)
        return of_chats + sum(
            NUM_SPELLINGS * len(text) if name == "bad_words" else len(text)
            for row in self.rows
            for name, value in row.items()
            for text in (value if isinstance(value, tuple) else (value,))
            if isinstance(text, str | bytes)
        )

    @property
    def timeout_ms(self) -> int | None:
        limits_ms = (row["timeout_ms"] for row in self.rows)
        return min((one for one in limits_ms if one is not None), default=None)

    def with_files(self) -> tuple[CheckedRequest, int]:
        """The request with its files found, and their bytes; none is decoded."""
        rows = each_row(self.reader.find_files, self.rows)
        num_bytes = sum(len(item.value) for row in rows for item in row.get("items", ()))
        return replace(self, rows=rows), num_bytes

    def tokenised(self) -> GenerationRequest:
        """Makes the tokens of its texts, on any thread. Raises RequestError."""
        checked = zip(self.rows, self.params, strict=True)
        generations = each_row(lambda row: _generation(*row, self.reader), checked)
        return GenerationRequest(generations, self.outputs, any(row["stream"] for row in self.rows))


def check_request(
    fields: RequestFields, reader: PromptReader, listed: Iterable[str] = OUTPUTS
) -> CheckedRequest:
    """Reads all but prompts: a bad number is found before a long prompt is tokenised. ``listed``
    are the outputs that the request lists.
    """
    rows = read_rows(fields, reader.fields)
    outputs = wanted_outputs(listed, _flagged(rows))
    numbers = sorted({row["n"] for row in rows})
    params = [_params(row, reader, outputs) for row in rows]
    limits_ms = reader.default_timeout_ms, reader.max_timeout_ms
    for row in rows:
        row["timeout_ms"] = timeout_ms(row["timeout_ms"], *limits_ms)
    if len(numbers) > 1:
        got = " and ".join(map(str, numbers[:2]))
        raise RequestError(f"n: got {got} in one batch, allowed: the same in every row")
    return CheckedRequest(rows, params, outputs, reader)


def _flagged(rows: list[dict[str, Any]]) -> frozenset[str]:
    """The optional outputs that flags, or numbers of log-probabilities, ask for."""
    flags = {name for row in rows for name in row if name.startswith(_RETURN) and row[name]}
    outputs = {name.removeprefix(_RETURN) for name in flags}
    for name in ("logprobs", "prompt_logprobs"):
        if any(row[name] is not None for row in rows):
            outputs.add(name)
    return frozenset(outputs)


def _params(row: dict[str, Any], reader: PromptReader, outputs: frozenset[str]) -> SamplingParams:
    num_beams, penalty = reader.num_beams(row), row["repetition_penalty"]
    max_tokens = _UNKNOWN if row["max_tokens"] is None else row["max_tokens"]
    default_min_tokens = max(0, min(reader.default_min_tokens, max_tokens))
    num_logprobs = row["logprobs"]
    if num_logprobs is None and outputs & _LOGPROBS:
        num_logprobs = 0
    num_prompt_logprobs = row["prompt_logprobs"]
    if num_prompt_logprobs is None and "prompt_logprobs" in outputs:
        num_prompt_logprobs = 0
    special = reader.special_token_ids if row["skip_special_tokens"] else {}
    stops = row["stop_words"]
    named = {option.param or name: row[name] for name, option in OPTIONS.items()}
    asked = {name: named[name] for name in _PARAMS if name in named}
    asked |= {
        "max_tokens": max_tokens,
        "min_tokens": default_min_tokens if row["min_tokens"] is None else row["min_tokens"],
        "temperature": _temperature(row),
        "repetition_penalty": reader.default_repetition_penalty if penalty is None else penalty,
        # A text without special tokens never shows stop words that are such.
        "stop_token_ids": (*row["stop_token_ids"], *(special[w] for w in stops if w in special)),
        "num_logprobs": num_logprobs,
        "num_prompt_logprobs": num_prompt_logprobs,
        "num_beams": num_beams,
        "length_penalty": row["length_penalty"] if num_beams > 1 else None,
        "constraint": row["constraint"],
    }
    params, size = SamplingParams(**asked), reader.vocab_size
    for name, option in OPTIONS.items():
        if option.kind in ("integers", "biases") and size is not None:
            given = getattr(params, option.param or name)
            ids = (one[0] for one in given) if option.kind == "biases" else given
            if (largest := max(ids, default=0)) >= size:
                allowed = f"0 to {size - 1}"
                raise RequestError(f"{name}: got token {shown(largest)}, allowed: {allowed}")
    return params


def _temperature(row: dict[str, Any]) -> float:
    """The request's temperature, else 1 where another field asks for sampling, else 0."""
    if row["temperature"] is not None:
        return float(row["temperature"])
    asks = any(row[name] not in OPTIONS[name].neutral for name in (*FILTERS, "seed", "n"))
    return 1.0 if asks else 0.0


def _generation(row: dict[str, Any], params: SamplingParams, reader: PromptReader) -> Generation:
    """Makes the tokens of a row whose options are checked."""
    check_range("priority", row["priority"])
    reader.check_adapter(row)
    num_kept = _most_prompt_tokens(row, params, reader.max_model_len)
    if num_kept is not None:
        reader = replace(reader, tokenize=partial(reader.tokenize, num_kept=num_kept))
    prompt = reader.of_token_ids(row) if row["input_ids"] else reader.read_prompt(row)
    prompt = _truncated(prompt, num_kept)
    num_tokens, clamps = len(prompt.token_ids), row["clamp_max_tokens"]
    most = reader.output_length(num_tokens, row["max_tokens"], clamps=clamps)
    if clamps:
        most = min(most, most_with_logprobs(params, num_tokens, row["n"]))
    params = replace(params, max_tokens=max(most, params.min_tokens))
    reader.check_length(num_tokens, params.max_tokens)
    if row["bad_words"]:
        spelt = (ids for word in row["bad_words"] for ids in reader.tokenize_word(word) if ids)
        params = replace(params, bad_token_ids=tuple(dict.fromkeys(spelt)))
    kept, counted = frozenset[int](), None
    chat_format = reader.chat.format_after(row, prompt.text)
    if chat_format is not None:
        counted = reader.chat.reasoning_tokens(chat_format)
        kept = reader.chat.kept_token_ids(chat_format, tools=bool(row["tools"]))
        held = reader.chat.after_reasoning(params.constraint, chat_format)
        params = replace(params, constraint=held)
    if prompt.decoder_start:
        prompt = replace(prompt, source=text_source(prompt.token_ids))
    # Without prompts and files, which take memory.
    asked = {name: row.get(name) for name in (*OPTIONS, "cache_salt", "lora_name")}
    return Generation(asked, prompt, params, chat_format, kept, counted)


def _most_prompt_tokens(
    row: dict[str, Any], params: SamplingParams, max_model_len: int | None
) -> int | None:
    """The most prompt tokens that a row keeps, or None for all; -1 is as many as fit."""
    most: int | None = row["truncate_prompt_tokens"]
    if most == -1 and max_model_len is not None:
        fits = row["max_tokens"] is not None and params.max_tokens < max_model_len
        answer = params.max_tokens if fits else max(1, params.min_tokens)
        return max(1, max_model_len - answer)
    if most is not None and most < 1:
        allowed = "1 and more, -1 for as many as fit"
        raise RequestError(f"truncate_prompt_tokens: got {shown(most)}, allowed: {allowed}")
    return most


def _truncated(prompt: Prompt, most: int | None) -> Prompt:
    """The prompt's last tokens, as vLLM has it."""
    if most is None:
        return prompt
    if prompt.source is not None or prompt.decoder_start is not None:
        what = "a prompt for an encoder, with an image or a sound can't be cut"
        raise RequestError(f"truncate_prompt_tokens: got a number, but {what}; allowed: null")
    if len(prompt.token_ids) <= most:
        return prompt
    return replace(prompt, text="", token_ids=prompt.token_ids[-most:])


def require_no_beams(row: dict[str, Any]) -> None:
    for name, allowed in (
        ("beam_width", "1 (no beam search)"),
        ("length_penalty", "1 (it only weighs beams)"),
    ):
        if row[name] not in (None, 1):
            raise RequestError(f"{name}: got {shown(row[name])}, allowed: {allowed}")


def check_logprobs(sequences: Iterable[Sequence]) -> None:
    """Raises RequestError where a request's sequences may have too many together."""
    num = sum(
        one.params.max_tokens * _with_its_own(one.params.num_logprobs)
        + one.num_prompt_tokens * _with_its_own(one.params.num_prompt_logprobs)
        for one in sequences
    )
    if num > MAX_LOGPROBS_TOGETHER:
        raise RequestError(
            f"logprobs: got {num} for n x max_tokens and the prompt, alternatives included; "
            f"allowed: at most {MAX_LOGPROBS_TOGETHER} in one request"
        )


def most_with_logprobs(params: SamplingParams, num_prompt_tokens: int, n: int) -> int:
    """The most tokens of each of ``n`` outputs that ``check_logprobs`` passes."""
    each = _with_its_own(params.num_logprobs)
    of_prompt = num_prompt_tokens * _with_its_own(params.num_prompt_logprobs)
    return max(1, (MAX_LOGPROBS_TOGETHER - of_prompt) // (n * each)) if each else params.max_tokens


def _with_its_own(num_alternatives: int | None) -> int:
    return 0 if num_alternatives is None else 1 + num_alternatives
