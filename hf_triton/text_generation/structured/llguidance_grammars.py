"""Makes llguidance's grammars of constraints.

llguidance builds an automaton only as far as outputs need it, so a grammar is ready in
milliseconds. Its limits bound the time and memory of most, not of all, when a grammar is made and
at any token later: expressions that apply to one text are followed in every combination of their
branches, in one step that nothing ends (perf/lab/NOTES.md has cases). So it is only called where
the process can be ended (grammar_process.py). https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any

from tokenizers import pre_tokenizers

from hf_triton.runtime.errors import RequestError, reason

from .constraint import Constraint
from .json_schemas import check_numbers, check_numbers_of_grammar, without_names

_SPACE = r"(\x20|\n[\x20\t]{0,32})"
_BOUNDED = (1, 9)
_GUIDANCE = "x-guidance"  # llguidance's options within a schema
# Keywords that state, or can state, a value's type.
_OF_TYPE = {"type", "$ref", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "items"}
_NONE: Mapping[str, int] = MappingProxyType({})
_NO_FORCING = '%llguidance {"no_forcing": true}\n'
_DEAD_END = "NoExtensionBias"
_MAX_LEXER_STATES = 30_000  # about half a kilobyte each
_LITERALS = r'//.*|#.*|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/'  # and comments, in Lark


def make_matcher(
    own: Any, constraint: Constraint, plain_tokens: Mapping[str, int] = _NONE
) -> tuple[Any, bytes]:
    """The grammar of a constraint and the mask of what may come first; ``own`` is llguidance's form
    of the tokenizer, ``plain_tokens`` are those of ``with_plain_tokens``. Raises RequestError.
    """
    from llguidance import LLMatcher, LLParserLimits

    if constraint.kind == "json_schema":
        check_numbers(json.loads(constraint.text), "json_schema")
    elif constraint.kind == "grammar":
        check_numbers_of_grammar(constraint.text)
    limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    try:
        grammar = grammar_text(constraint, plain_tokens)
        matcher = LLMatcher(own, grammar, log_level=0, limits=limits)
        error = matcher.get_error()
    except Exception as raised:  # a text that is not even Unicode, and whatever else it refuses
        error = str(raised)
    if error:
        why = _place(error) if constraint.kind == "grammar" else _short_error(error)
        raise RequestError(f"{constraint.kind}: {why}")
    return matcher, _first_mask(matcher, constraint.kind)


def grammar_text(constraint: Constraint, plain_tokens: Mapping[str, int] = _NONE) -> str:
    """The constraint as llguidance's grammar; a text of ``plain_tokens`` may be written by its own
    token too, and not in pieces alone. Raises whatever llguidance raises.
    """
    from llguidance import LLMatcher

    free = any(plain in text for plain in plain_tokens for text in constraint.texts)
    if free or constraint.reasoning is not None:
        after = constraint.reasoning is not None
        lark = grammar_after_reasoning(constraint) if after else f"start: {_lark_of(constraint)}"
        lark = with_numbered_tokens(lark, plain_tokens)
        return str(LLMatcher.grammar_from_lark(f"{_NO_FORCING if free else ''}{lark}"))
    if constraint.kind == "json_schema":
        schema = json.dumps(with_json_defaults(constraint.text))
        return str(LLMatcher.grammar_from_json_schema(schema))
    if constraint.kind == "grammar":
        return str(LLMatcher.grammar_from_lark(lark_text(constraint)))
    return str(LLMatcher.grammar_from_regex(regex_of(constraint)))


def lark_text(constraint: Constraint) -> str:
    """A grammar in llguidance's form of Lark; it may be llama.cpp's GBNF."""
    from llguidance.gbnf_to_lark import any_to_lark

    return str(any_to_lark(constraint.text))


def grammar_after_reasoning(constraint: Constraint) -> str:
    """A constraint that begins after reasoning, in llguidance's form of Lark
    (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md). Marks are looked for as
    texts and as tokens of their own, which are no texts to llguidance.
    """
    reasoning = constraint.reasoning
    assert reasoning is not None
    tokens, end = dict(reasoning.tokens), json.dumps(reasoning.end)
    begins = [json.dumps(reasoning.begin), *_spelt(reasoning.begin, tokens)]
    ends = [f"THOUGHT? {spelt}" for spelt in _spelt(reasoning.end, tokens)]
    before = "" if reasoning.inside else f"({' | '.join(begins)})"
    optional = "" if reasoning.inside else "?"
    return "\n".join(
        (
            f"start: ({before} reasoning){optional} answer",
            f"reasoning: ({' | '.join((*ends, 'thought'))}) SPACE?",
            "THOUGHT: /(?s:.+)/",
            f"thought[suffix={end}]: /(?s:.*)/",
            r"SPACE: /\s{1,4}/",
            f"answer: {_lark_of(constraint)}",
        )
    )


def _spelt(mark: str, tokens: dict[str, int]) -> list[str]:
    """A mark spelt with its tokens; an empty list if it does not begin with one."""
    pieces = re.split(f"({'|'.join(map(re.escape, tokens))})", mark) if tokens else [mark]
    if pieces[0]:
        return []
    spelt = (f"<[{tokens[one]}]>" if one in tokens else json.dumps(one) for one in pieces if one)
    return [" ".join(spelt)]


def _lark_of(constraint: Constraint) -> str:
    from llguidance import LLMatcher

    if constraint.kind == "json_schema":
        return f"%json {json.dumps(with_json_defaults(constraint.text))}"
    if constraint.kind == "grammar":
        return f"%lark {{\n{lark_text(constraint)}\n}}"
    [grammar] = json.loads(LLMatcher.grammar_from_regex(regex_of(constraint)))["grammars"]
    return str(grammar["lark_grammar"]).removeprefix("start: ")


def with_json_defaults(schema: str) -> dict[str, Any]:
    """A JSON schema with the white space that outputs may have, where it says none itself, and
    without names that nothing needs. One with ``properties`` and no type is an object's, as
    outlines, xgrammar and llama.cpp read it.
    """
    found: dict[str, Any] = json.loads(schema)
    without_names(found)
    if "properties" in found and not found.keys() & _OF_TYPE:
        found["type"] = "object"
    own = found.get(_GUIDANCE)
    if own is None or isinstance(own, dict):
        found[_GUIDANCE] = {**json_defaults(), **(own or {})}
    return found


@functools.cache
def json_defaults() -> Any:
    """The white space between two tokens of JSON: one space, or a line break and an indentation.
    Allowed any, some models write nothing else. llguidance before 1.9 (vLLM 0.32 requires 1.7.6)
    lets the pattern repeat without end: there white space comes after separators alone.
    """
    found = tuple(int(part) for part in metadata.version("llguidance").split(".")[:2])
    if found >= _BOUNDED:
        return {"whitespace_pattern": _SPACE}
    after = f"{_SPACE}?"
    separators = {"item_separator": f",{after}", "key_separator": f":{after}"}
    return {"whitespace_flexible": False, **separators}


def _place(error: str) -> str:
    """Returns the line of a grammar's mistake; llguidance's own text repeats the grammar."""
    found = re.search(r"line (\d+)|(\d+)\(\d+\):", error)
    at = f" at line {found[1] or found[2]}" if found else ""
    return f"not valid{at}, allowed: Lark as llguidance has it, or llama.cpp's GBNF"


def regex_of(constraint: Constraint) -> str:
    """The regular expression of a constraint; of choices, one that they match, and nothing else."""
    is_choice = constraint.kind == "choice"
    return "|".join(map(re.escape, constraint.texts)) if is_choice else constraint.text


def refusal_reason(stop_reason: str, error: str) -> str:
    """Says why a token was refused. llguidance reports InternalError at limits of its own too."""
    if error.startswith(_DEAD_END):
        return "the text so far can't be continued; allowed: one that can always be completed"
    fits_nothing = "satisfy the grammar" in error or stop_reason.startswith(("NoExt", "NotStop"))
    if not fits_nothing:
        return "too complex to follow any further, allowed: a simpler one"
    return (
        "no token of this model can continue; allowed: what its tokens can write, without "
        "bad_words or other options that forbid them"
    )


def _first_mask(matcher: Any, option: str) -> bytes:
    """Raises RequestError where no output can begin: nothing fits, or no token writes it."""
    first = matcher.deep_copy()
    mask: bytes = first.compute_bitmask()
    if first.is_error():
        why = first.stop_reason()
        if why in ("ParserTooComplex", "LexerTooComplex"):
            raise RequestError(f"{option}: too complex to follow, allowed: a simpler one")
        raise RequestError(f"{option}: no text that this model can write matches it")
    return mask


def _short_error(error: str) -> str:
    """llguidance's error message, without the grammar that it repeats."""
    if found := re.search(r"error: (.*)", error):
        return f"not a valid regular expression: {found[1]}"
    if "too big" in error or "too large" in error:
        return "too large, allowed: a smaller one"
    return reason(Exception(error.splitlines()[0]), 200)


def with_plain_tokens(tokenizer: str) -> tuple[str, dict[str, int]]:
    """The tokenizer (``tokenizer.json``'s text) with its plain added tokens among its vocabulary,
    such as Qwen's ``<tool_call>``, and their texts and ids. Only BPE's vocabulary takes more.

    llguidance takes each added token of the form ``<...>`` as a special one, which no text matches;
    where a grammar allows nothing but such a text, it demands that token and then refuses it.
    https://github.com/guidance-ai/llguidance/blob/main/toktrie_hf_tokenizers/src/lib.rs
    """
    described = json.loads(tokenizer)
    added, model = described["added_tokens"], described["model"]
    plain = [token for token in added if _is_plain(token)] if model["type"] == "BPE" else []
    if not plain:
        return tokenizer, {}
    described["added_tokens"] = [token for token in added if not _is_plain(token)]
    has_bytes = "ByteFallback" in json.dumps(described["decoder"])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for token in plain:
        text = token["content"]
        # Otherwise a character for each byte, as in GPT-2's vocabulary.
        text = text.replace(" ", "▁") if has_bytes else byte_level.pre_tokenize_str(text)[0][0]
        model["vocab"][text] = token["id"]
    return json.dumps(described), {token["content"]: token["id"] for token in plain}


def with_numbered_tokens(lark: str, plain_tokens: Mapping[str, int]) -> str:
    """A grammar in which these have their numbers, since llguidance knows no other names."""
    if not plain_tokens:
        return lark
    names = "|".join(map(re.escape, plain_tokens))
    numbered = {name: f"<[{token_id}]>" for name, token_id in plain_tokens.items()}
    return re.sub(f"{_LITERALS}|{names}", lambda found: numbered.get(found[0], found[0]), lark)


def _is_plain(token: dict[str, object]) -> bool:
    text = str(token["content"])
    return not token["special"] and text.startswith("<") and text.endswith(">")
