"""Whisper's special tokens, as its generation config lists them, and the start of its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import short

from ..transcript import token_ids_of

DETECTED = -1  # stands for the language's token until the model has chosen it


@dataclass(frozen=True, eq=False)
class WhisperTokens:
    """``languages`` and ``tasks`` are token ids by code and name. ``own_start`` is what the config
    puts after ``start`` where a request says nothing; its ``None`` is the language to detect.
    """

    start: int
    end: int
    no_timestamps: int | None
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    own_start: tuple[int | None, ...]
    own_language: str | None
    own_task: str | None
    suppressed: tuple[int, ...]
    suppressed_at_first: tuple[int, ...]
    max_initial_timestamp: int | None
    is_multilingual: bool
    vocab_size: int

    @property
    def timestamp_begin(self) -> int:
        """The token of 0.00 s; all from it on are times, in steps of 0.02 s."""
        return self.vocab_size + 1 if self.no_timestamps is None else self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """The token that says that nobody speaks, for models that write times."""
        assert self.no_timestamps is not None
        return self.no_timestamps - 1

    def language_of(self, token_id: int) -> str:
        """The code of a language's token."""
        return next((code for code, own in self.languages.items() if own == token_id), "")

    def language_code(self, language: str) -> str:
        """The code for ``en``, ``English`` or ``<|en|>``.

        Raises:
            RequestError: the model has no such language.
        """
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        bare = language.lower().removeprefix("<|").removesuffix("|>")
        code = TO_LANGUAGE_CODE.get(bare, bare)
        if not self.is_multilingual or not self.languages:
            raise RequestError(
                f"language: got {short(language)}, but this model knows one language alone: send "
                "none"
            )
        if code not in self.languages:
            allowed = ", ".join(sorted(self.languages))
            raise RequestError(f"language: got {short(language)}, allowed: {allowed}")
        return code

    def check_task(self, task: str) -> None:
        """Raises RequestError for a task that the model does not have."""
        if not self.is_multilingual or not self.tasks:
            raise RequestError(
                f"task: got {short(task)}, but this model can only transcribe: send none"
            )
        if task not in self.tasks:
            allowed = ", ".join(sorted(self.tasks))
            raise RequestError(f"task: got {short(task)}, allowed: {allowed}")

    def initial(self, language: str | None, task: str | None, *, timestamps: bool) -> list[int]:
        """The decoder's first tokens, as WhisperForConditionalGeneration._retrieve_init_tokens
        chooses them; ``DETECTED`` is the language's where it is to be detected.
        """
        language, task = language or self.own_language, task or self.own_task
        tokens: list[int | None] = [self.start]
        if language is None and task is None:
            tokens += self.own_start
        if language is not None:
            tokens[1:2] = [self.languages[language]]
        elif self.languages and (len(tokens) == 1 or tokens[1] is None):
            tokens[1:2] = [DETECTED]
        if task is not None:
            tokens.append(self.tasks[task])
        elif language is not None and "transcribe" in self.tasks:
            tokens.append(self.tasks["transcribe"])
        if not timestamps and self.no_timestamps is not None and tokens[-1] != self.no_timestamps:
            tokens.append(self.no_timestamps)
        elif timestamps and tokens[-1] == self.no_timestamps:
            tokens.pop()
        return [token_id for token_id in tokens if token_id is not None]


def language_name(code: str) -> str:
    """The name of a language, ``english``; the code where it is not known."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return LANGUAGES.get(code, code)


def whisper_tokens(model: Any) -> WhisperTokens:
    """The tokens of a loaded Whisper.

    Raises:
        LoadError: its generation config lacks what every output begins with.
    """
    own, config = model.generation_config, model.config
    start, ends = own.decoder_start_token_id, token_ids_of(own.eos_token_id)
    if start is None or not ends:
        raise LoadError("generation_config.json names no decoder_start_token_id or eos_token_id")
    languages = {_bare(token): int(id_) for token, id_ in (_get(own, "lang_to_id") or {}).items()}
    language = _get(own, "language")
    forced = _get(own, "forced_decoder_ids") or getattr(config, "forced_decoder_ids", None)
    return WhisperTokens(
        start=int(start),
        end=ends[0],
        no_timestamps=_get(own, "no_timestamps_token_id"),
        languages=languages,
        tasks=dict(_get(own, "task_to_id") or {}),
        own_start=tuple(_from_first(forced or [])),
        own_language=_bare(language) if isinstance(language, str) else None,
        own_task=_get(own, "task"),
        suppressed=token_ids_of(own.suppress_tokens),
        suppressed_at_first=token_ids_of(own.begin_suppress_tokens),
        max_initial_timestamp=_get(own, "max_initial_timestamp_index"),
        is_multilingual=bool(getattr(own, "is_multilingual", True)),
        vocab_size=int(config.vocab_size),
    )


def _get(own: Any, name: str) -> Any:
    """A field that only Whisper's generation configs have."""
    return getattr(own, name, None)


def _bare(token: str) -> str:
    return token.removeprefix("<|").removesuffix("|>")


def _from_first(forced: list[Any]) -> Iterator[int | None]:
    """The tokens of [position, token] pairs, as long as positions go on from 1."""
    for position, (place, token_id) in enumerate(forced, start=1):
        if place != position:
            raise LoadError(f"forced_decoder_ids: got {forced}, expected positions from 1 on")
        yield token_id
