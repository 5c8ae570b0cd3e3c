"""Whisper's special tokens, as its generation config lists them, and the start of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import short

from ..transcript import token_ids_of

DETECTED = -1  # stands for the language's token until the model has chosen it


class WhisperTokens:
    """``languages`` and ``tasks`` are token ids by code and name. ``own_start`` is what the config
    puts after ``start`` where a request says nothing; its ``None`` is the language to detect.
    """

    def __init__(self, model: Any) -> None:
        """Raises LoadError where the generation config lacks what every output begins with."""
        own = model.generation_config
        start, ends = own.decoder_start_token_id, token_ids_of(own.eos_token_id)
        if start is None or not ends:
            raise LoadError(
                "generation_config.json names no decoder_start_token_id or eos_token_id"
            )
        forced = getattr(own, "forced_decoder_ids", None)
        forced = forced or getattr(model.config, "forced_decoder_ids", None) or []
        if [position for position, _ in forced] != list(range(1, len(forced) + 1)):
            raise LoadError(f"forced_decoder_ids: got {forced}, expected positions from 1 on")
        # These only Whisper's generation configs have.
        codes, tasks = getattr(own, "lang_to_id", None), getattr(own, "task_to_id", None)
        language = getattr(own, "language", None)
        self.start, self.end = int(start), ends[0]
        self.no_timestamps: int | None = getattr(own, "no_timestamps_token_id", None)
        self.languages = {_bare(token): int(id_) for token, id_ in (codes or {}).items()}
        self.tasks: dict[str, int] = dict(tasks or {})
        self.own_start: list[int | None] = [token_id for _, token_id in forced]
        self.own_language = _bare(language) if isinstance(language, str) else None
        self.own_task: str | None = getattr(own, "task", None)
        self.suppressed = token_ids_of(own.suppress_tokens)
        self.suppressed_at_first = token_ids_of(own.begin_suppress_tokens)
        self.max_initial_timestamp = getattr(own, "max_initial_timestamp_index", None)
        self.is_multilingual = bool(getattr(own, "is_multilingual", True))
        self.vocab_size = int(model.config.vocab_size)

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
        return next((code for code, own in self.languages.items() if own == token_id), "")

    def language_code(self, language: str) -> str:
        """The code for ``en``, ``English`` or ``<|en|>``. Raises RequestError."""
        bare = _bare(language.lower())
        code = TO_LANGUAGE_CODE.get(bare, bare)
        if code not in self.languages or not self.is_multilingual:
            raise self._refusal("language", language, self.languages, "knows one language alone")
        return code

    def check_task(self, task: str) -> None:
        if task not in self.tasks or not self.is_multilingual:
            raise self._refusal("task", task, self.tasks, "can only transcribe")

    def _refusal(self, field: str, got: str, known: Mapping[str, int], only: str) -> RequestError:
        problem = f"but this model {only}: send none"
        if self.is_multilingual and known:
            problem = f"allowed: {', '.join(sorted(known))}"
        return RequestError(f"{field}: got {short(got)}, {problem}")

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


def _bare(token: str) -> str:
    return token.removeprefix("<|").removesuffix("|>")
