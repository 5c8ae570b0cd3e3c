"""Stands in for the Rust part of a model's tokenizer, whoever calls it: a panic is a request's
error, and one that is not known to be harmless reads and writes texts in a sandbox.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tokenizers

from .. import log
from ..errors import RequestError, is_panic
from ..sandbox.pool import Sandbox, SandboxEndedError, SandboxError
from . import in_sandbox
from .chat_templates import render_in_sandbox
from .lengths import num_characters
from .trust import is_trusted

_LIMIT_S, _A_SECOND = 5.0, 200_000  # characters
_MAX_BYTES = 2**30
_TRIAL_S = 2.0
_TRIALS = tuple(part * 2000 + "!" for part in ("a", " ", "1", "ab ", "\n", "."))
_OF_CALLS = ("encode_special_tokens", "truncation", "padding")  # set for each call
_OWN = ("backend", "is_sandboxed", "_sandbox")


def guard(owner: Any) -> None:
    """Puts a guarded tokenizer into a tokenizer of transformers, or into a processor that has one,
    where it is of Rust, and has chat templates rendered in a sandbox. Logs a line where texts that
    are made for it take its tokenizer long.
    """
    render_in_sandbox(owner)
    tokenizer = getattr(owner, "tokenizer", owner)
    backend = getattr(tokenizer, "_tokenizer", None)
    if isinstance(backend, tokenizers.Tokenizer):
        guarded = GuardedTokenizer(backend, is_sandboxed=not is_trusted(backend))
        tokenizer._tokenizer = guarded  # noqa: SLF001
        guarded.try_out()


def may_take_long(tokenizer: Any) -> bool:
    """Whether nobody knows how long a tokenizer takes for a short text."""
    return bool(getattr(getattr(tokenizer, "_tokenizer", None), "is_sandboxed", False))


class GuardedTokenizer:
    """A ``tokenizers.Tokenizer`` with all that one has. Any thread may ask it for tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, *, is_sandboxed: bool) -> None:
        self.backend, self.is_sandboxed = backend, is_sandboxed
        self._sandbox: Sandbox | None = None  # of the tokenizer as it is

    def encode_batch(
        self,
        input: Sequence[Any],  # noqa: A002, the name that it has
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> list[tokenizers.Encoding]:
        """The tokens of texts and pairs. Raises RequestError for what the tokenizer can't read."""
        options = {"is_pretokenized": is_pretokenized, "add_special_tokens": add_special_tokens}
        if not self.is_sandboxed:
            with _panics_refused():
                return self.backend.encode_batch(input, **options)
        return self._encoded(input, options)

    encode_batch_fast = encode_batch

    def encode(
        self,
        sequence: Any,
        pair: Any = None,
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> tokenizers.Encoding:
        """As ``encode_batch``, which others need not wait for."""
        given = sequence if pair is None else (sequence, pair)
        return self.encode_batch([given], is_pretokenized, add_special_tokens)[0]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens. Raises RequestError where there is none."""
        if not self.is_sandboxed:
            with _panics_refused():
                return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        asked = {"ids": list(ids), "skip_special_tokens": skip_special_tokens}
        text: str = json.loads(self._call(in_sandbox.decode, asked, _LIMIT_S))
        return text

    def try_out(self) -> None:
        """Reads texts that are made for expressions that explode, in a sandbox."""
        if not self.is_sandboxed:
            return
        try:
            for text in _TRIALS:
                self._encoded([text], {}, _TRIAL_S)
        except RequestError:
            log.warn(
                "the tokenizer's regular expressions or normalizers are none of those that are "
                f"known, and a text of {len(text)} characters takes it more than {_TRIAL_S:g} s, "
                "or fails: such texts will be refused"
            )

    def _encoded(
        self, texts: Sequence[Any], options: dict[str, Any], limit_s: float | None = None
    ) -> list[tokenizers.Encoding]:
        has_words = options.get("is_pretokenized", False)
        pairs = [_as_pair(one, has_words=has_words) for one in texts]
        asked = {"input": pairs, **options, **{n: getattr(self.backend, n) for n in _OF_CALLS}}
        size = num_characters(pairs)
        states = self._call(in_sandbox.encode, asked, (limit_s or _LIMIT_S) + size / _A_SECOND)
        return [_encoding(state) for state in states.split(b"\n")] if pairs else []

    def _call(self, function: Callable[..., bytes], asked: Any, limit_s: float) -> bytes:
        sandbox = self._sandbox
        if sandbox is None:
            sandbox = self._sandbox = Sandbox(in_sandbox.make_ready, self.backend.to_str().encode())
        question = json.dumps(asked).encode()
        try:
            answer = sandbox.call(function, question, time_limit_s=limit_s, max_bytes=_MAX_BYTES)
        except SandboxEndedError:
            raise RequestError(
                f"the text takes this model's tokenizer more than {limit_s:.3g} s, or too much "
                "memory: send another"
            ) from None
        except SandboxError:
            raise _failed() from None
        return bytes(answer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.backend, name)
        if name.startswith("add_"):
            self._sandbox = None  # it is about to change
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            if name not in _OF_CALLS:
                self._sandbox = None
            setattr(self.backend, name, value)

    def __copy__(self) -> tokenizers.Tokenizer:
        return copy.copy(self.backend)

    def __deepcopy__(self, memo: Any) -> GuardedTokenizer:
        return GuardedTokenizer(copy.deepcopy(self.backend, memo), is_sandboxed=self.is_sandboxed)


def _as_pair(given: Any, *, has_words: bool) -> tuple[Any, Any]:
    """A pair is a tuple; or a list, where a text is none."""
    is_pair = isinstance(given, tuple) or (isinstance(given, list) and not has_words)
    return tuple(given) if is_pair else (given, None)


def _encoding(state: bytes) -> tokenizers.Encoding:
    found = tokenizers.Encoding()
    found.__setstate__(state)
    return found


@contextmanager
def _panics_refused() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if is_panic(error):
            raise _failed() from None
        raise


def _failed() -> RequestError:
    return RequestError("this model's tokenizer fails at the text: send another")
