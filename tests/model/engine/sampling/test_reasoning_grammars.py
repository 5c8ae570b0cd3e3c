"""A grammar begins after the model's reasoning."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.structured.constraint import Constraint, Reasoning
from hf_triton.text_generation.structured.llguidance_grammars import make_matcher
from tests.model.engine.sampling.test_structured import Grammars, byte_level

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
CONSTRAINTS = {
    '{"a": 1}': Constraint("json_schema", (SCHEMA,)),
    "a/b\n12": Constraint("regex", ("a/b\n[0-9]{2}",)),
    "yes": Constraint("choice", ("yes", "no")),
    "ab": Constraint("grammar", ('start: "a" SPACE\nSPACE: /b|c/',)),
    "f(1)": Constraint("grammar", ('root ::= name "(" [0-9]+ ")"\nname ::= "f" | "g"',)),
}


@pytest.fixture(scope="module", params=[True, False], ids=["special", "added"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    marks = [AddedToken(text, special=request.param) for text in ("<think>", "</think>")]
    made.add_special_tokens(marks) if request.param else made.add_tokens(marks)
    return made


@pytest.mark.parametrize("answer", CONSTRAINTS)
@pytest.mark.parametrize("inside", [True, False])
def test_the_constraint_begins_after_the_reasoning(
    tokenizer: Any, inside: bool, answer: str
) -> None:
    begin_id, end_id = map(tokenizer.token_to_id, ("<think>", "</think>"))
    own = LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id("<end>"))

    def spelt(text: str) -> list[int]:
        return [i for one in text for i in tokenizer.encode(one, add_special_tokens=False).ids]

    def is_taken(reasoning: Reasoning, *pieces: str | int) -> bool:
        constraint = CONSTRAINTS[answer]
        held = Constraint(constraint.kind, constraint.texts, reasoning)
        matcher, _ = make_matcher(own, held)
        ids = [i for p in pieces for i in ([p] if isinstance(p, int) else spelt(p))]
        return all(matcher.consume_token(i) for i in ids) and bool(matcher.is_accepting())

    for tokens in ((), (("<think>", begin_id), ("</think>", end_id))):
        held = Reasoning("<think>", "</think>", inside, tokens)
        begin = "" if inside else "<think>"
        assert is_taken(held, begin, "hm </thin {", "</think>", answer)
        assert is_taken(held, begin, "</think>\n\n", answer)
        assert not is_taken(held, begin, "hm", answer)
        assert not is_taken(held, begin, "hm</think>", "x" + answer)
        assert is_taken(held, answer) is not inside
    begins = "" if inside else begin_id
    assert is_taken(held, begins, "hm {}", end_id, "\n", answer)
    assert is_taken(held, begins, end_id, answer)


@pytest.mark.parametrize(
    "grammar, place",
    [
        ("start: SECRET", " at line 1"),
        ('start: x\nx: %json {"type": "SECRET"}', " at line 2"),
        ('root ::= "SECRET" (', " at line 1"),
        ("SECRET", " at line 1"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, ""),
    ],
)
def test_a_wrong_grammar_is_placed_and_not_quoted(tokenizer: Any, grammar: str, place: str) -> None:
    own = LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id("<end>"))
    with pytest.raises(RequestError) as raised:
        make_matcher(own, Constraint("grammar", (grammar,)))
    assert str(raised.value).startswith(f"grammar: not valid{place}, allowed: Lark")
    assert "SECRET" not in str(raised.value)


def test_marks_of_several_tokens(tokenizer: Any) -> None:
    begin_id, end_id = map(tokenizer.token_to_id, ("<think>", "</think>"))
    own = LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id("<end>"))
    tokens = (("<think>", begin_id), ("</think>", end_id))
    held = Reasoning("<think>a</think>", "</think>b<think>", inside=False, tokens=tokens)
    matcher, _ = make_matcher(own, Constraint("choice", ("yes",), held))
    a, b, y, e, s = (tokenizer.token_to_id(one) for one in "abyes")
    ids = [begin_id, a, end_id, b, y, end_id, b, begin_id, y, e, s]
    assert all(matcher.consume_token(token_id) for token_id in ids)
    assert matcher.is_accepting()


def test_the_process_of_a_grammar_is_told_of_the_reasoning() -> None:
    tokenizer = byte_level()
    grammars = Grammars(tokenizer)
    reasoning = Reasoning("<think>", "</think>", True, (("<other>", 3),))
    following = grammars.compile(Constraint("choice", ("yes",), reasoning))
    grammar = following()
    for token_id in tokenizer("hm</think>yes").input_ids:
        assert not grammar.is_complete
        grammar.follow(token_id)
    assert grammar.is_complete
    grammars.close()
