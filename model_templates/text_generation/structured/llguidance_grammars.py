"""Makes llguidance's grammars of constraints, for one tokenizer.

llguidance builds an automaton only as far as outputs need it, so a grammar is ready in
milliseconds. Its own limits, and schema_complexity.py, bound the time and memory of each. Its form
of the tokenizer is built with the first grammar.
https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from hf_runtime.errors import RequestError, reason

from .constraint import Constraint
from .grammar import Grammar
from .schema_complexity import check_complexity

_SPACE = r"(\x20|\n[\x20\t]{0,32})"
_BOUNDED = (1, 9)
_MAX_LEXER_STATES = 30_000  # about half a kilobyte each


class Grammars:
    """Makes the grammars of one model's outputs; its methods may be called from any thread.

    ``vocab_size`` is how many logits the model has, ``eos_token_ids`` are those that end a text.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._own: Any = None
        self._problem = ""
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> Callable[[], Grammar]:
        """Makes a function that gives the grammar of one more output.

        Raises:
            RequestError: names the option, and what is wrong with what it holds.
        """
        self.prepare()
        option, own = constraint.kind, self._own
        if own is None:
            raise RequestError(f"{option}: {self._problem}")
        if option == "json_schema":
            check_complexity(constraint.text)
        matcher = _matcher(own, constraint)
        num_words = -(-own.vocab_size // 32)
        _check_begins(matcher, option)
        special_tokens = self._special_tokens(constraint)
        return lambda: Grammar(matcher.deep_copy(), option, num_words, special_tokens)

    def prepare(self) -> None:
        """Makes llguidance's own form of the tokenizer, a trie of its tokens' bytes: about a second
        for a large one. Where that fails, each request is told why.
        """
        with self._lock:
            if self._own is not None or self._problem:
                return
            try:
                self._own = self._tokenizer_of_llguidance()
            except ImportError:
                self._problem = (
                    "this server's Python lacks the package llguidance, which it needs; whoever "
                    "runs the server can add it: pip install 'llguidance>=1.7,<2'"
                )
            except BaseException as error:  # PyO3's PanicException is not an Exception
                why = reason(Exception(str(error) or type(error).__name__), 120)
                self._problem = (
                    "can't be used with this model, whose tokenizer is of a kind that llguidance "
                    f"does not know ({why})"
                )

    def _special_tokens(self, constraint: Constraint) -> dict[int, str]:
        added = self._tokenizer.added_tokens_decoder.items()
        special = {token_id: token.content for token_id, token in added if token.special}
        return {i: t for i, t in special.items() if any(t in one for one in constraint.texts)}

    def _tokenizer_of_llguidance(self) -> Any:
        from llguidance.hf import from_tokenizer

        known = max(self._vocab_size, len(self._tokenizer))
        return from_tokenizer(self._tokenizer, n_vocab=known, eos_token=self._eos_token_ids or None)


def _matcher(own: Any, constraint: Constraint) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    try:
        matcher = LLMatcher(own, grammar_text(constraint), log_level=0, limits=limits)
        error = matcher.get_error()
    except Exception as raised:  # a text that is not even Unicode, and whatever else it refuses
        error = str(raised)
    if error:
        raise RequestError(f"{constraint.kind}: {_short_error(error)}")
    return matcher


def grammar_text(constraint: Constraint) -> str:
    """The constraint as llguidance's grammar. Raises whatever llguidance raises."""
    from llguidance import LLMatcher

    if constraint.kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(constraint.text, defaults=json_defaults()))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(constraint.text))
    return str(LLMatcher.grammar_from_regex(choice_regex(constraint)))


@functools.cache
def json_defaults() -> Any:
    """The white space that outputs may have: between two tokens of JSON one space, or a line break
    and an indentation. Where any white space is allowed, some models write nothing else until
    max_tokens. llguidance before 1.9 lets the pattern repeat without end (vLLM 0.32 requires
    1.7.6): there white space is allowed after separators alone.
    """
    found = tuple(int(part) for part in metadata.version("llguidance").split(".")[:2])
    if found >= _BOUNDED:
        return {"whitespace_pattern": _SPACE}
    after = f"{_SPACE}?"
    separators = {"item_separator": f",{after}", "key_separator": f":{after}"}
    return {"whitespace_flexible": False, **separators}


def choice_regex(constraint: Constraint) -> str:
    """A regular expression that the choices match, and nothing else."""
    return "|".join(map(re.escape, constraint.texts))


def _check_begins(matcher: Any, option: str) -> None:
    """Raises RequestError where no output can begin: nothing fits, or no token writes it."""
    first = matcher.deep_copy()
    first.compute_bitmask()
    if first.is_error():
        why = first.stop_reason()
        if why in ("ParserTooComplex", "LexerTooComplex"):
            raise RequestError(f"{option}: too complex to follow, allowed: a simpler one")
        raise RequestError(f"{option}: nothing that this model's tokens can write fits it")


def _short_error(error: str) -> str:
    """llguidance's error message, without the grammar that it repeats."""
    if found := re.search(r"error: (.*)", error):
        return f"not a valid regular expression: {found[1]}"
    if "too big" in error or "too large" in error:
        return "too large, allowed: a smaller one"
    return reason(Exception(error.splitlines()[0]), 200)
