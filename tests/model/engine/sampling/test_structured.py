"""Outputs that are held to something: with each kind of tokenizer whatever the logits say, and
compiled beside everything else.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_triton.runtime.errors import OverloadedError, RequestError
from hf_triton.runtime.request.request import Request
from hf_triton.text_generation.engines.vllm.sampling import structured_outputs
from hf_triton.text_generation.reception import Reception
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.structured.compiling import Compiler, GrammarProcesses, Started, Take
from hf_triton.text_generation.structured.constraint import Constraint
from hf_triton.text_generation.structured.grammar import Following, Grammar
from hf_triton.text_generation.structured.llguidance_grammars import grammar_text
from tests.support.driving import Caller, NumberTokenizer
from tests.support.other_tokenizers import of_bytes
from tests.support.triton import eventually
from tests.unit.requests.test_request import READER
from tests.unit.sampling.test_grammar_processes import Told

TEXTS = [
    '{"name": "Ann", "age": 31, "likes": ["tea", "the sea"]}',
    "north south 2024-05-17 été 日本",
]
PADDING = 45  # logits that the tokenizer has no token for
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3]\d é"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"enum": [7, 88]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OF_NO_TYPE = {name: value for name, value in SCHEMA.items() if name != "type"}


class Grammars:
    """Makes grammars, and waits for them."""

    def __init__(
        self, tokenizer: Any, num_tokens: int | None = None, more_ends: tuple[int, ...] = ()
    ) -> None:
        ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [1]
        ends += more_ends
        num_tokens = num_tokens or len(tokenizer) + PADDING
        self.processes = GrammarProcesses(tokenizer, num_tokens, ends)
        self.close = self.processes.close

    def compile(self, constraint: Constraint, time_limit_s: float = 60.0) -> Following:
        following = self.processes.begin(constraint, time_limit_s)
        assert following.wait(time_limit_s + 5)
        return following


CONSTRAINTS = [
    Constraint("regex", (DATE,)),
    Constraint("choice", ("a.b*(", "日本", " south\n", '"q\\')),
    Constraint("json_schema", (json.dumps(SCHEMA),)),
    Constraint("json_schema", (json.dumps(OF_NO_TYPE),)),
]


def fits(constraint: Constraint, text: str) -> bool:
    if constraint.kind == "regex":
        return re.fullmatch(constraint.text, text) is not None
    if constraint.kind == "choice":
        return text in constraint.texts
    value = json.loads(text)
    return list(value) == ["name", "age"] and value["age"] in (7, 88) and len(value["name"]) <= 5


def byte_level() -> Any:
    made = of_bytes(TEXTS, 320, ["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


def sentencepiece() -> Any:
    """Pieces with a space before words, and bytes for what no piece holds."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<end>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    trained = json.loads(tokenizer.to_str())
    trained["added_tokens"] = trained["added_tokens"][:2]  # bytes are ordinary tokens
    tokenizer = Tokenizer.from_str(json.dumps(trained))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")


@pytest.fixture(scope="module", params=[byte_level, sentencepiece], ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Iterator[Grammars]:
    grammars = Grammars(tokenizer)
    yield grammars
    grammars.close()


def sequence(grammar: Grammar | None, tokenizer: Any, **params: Any) -> Sequence:
    constraint = None if grammar is None else Constraint("regex", ("any",))
    sampling = SamplingParams(**{"max_tokens": 400, "constraint": constraint, **params})
    nobody = Caller(lambda result: None)
    return Sequence([0], sampling, nobody, Detokenizer(tokenizer, [0]), grammar=grammar)


def generate(sequences: list[Sequence], eos: int, vocab_size: int, *more_ends: int) -> None:
    """Steps of random logits until all are done."""
    generator = torch.Generator().manual_seed(1)
    sampler = Sampler([eos, *more_ends])
    while going := [s for s in sequences if s.finish_reason is None]:
        logits = torch.randn(len(going), vocab_size, generator=generator)
        for one, token_id in zip(going, sampler.sample(logits, going).token_ids, strict=True):
            one.append(token_id, frozenset([eos, *more_ends]))


def text_of(sequence: Sequence) -> str:
    return sequence.update().read_text()


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: constraint.kind)
@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "seed": 5}], ids=["greedy", "drawn"])
def test_random_logits_write_what_fits(
    grammars: Grammars, tokenizer: Any, constraint: Constraint, options: dict[str, Any]
) -> None:
    start = grammars.compile(constraint)
    held = [sequence(start(), tokenizer, **options) for _ in range(4)]
    free = sequence(None, tokenizer, max_tokens=9)

    generate([*held, free], tokenizer.eos_token_id, len(tokenizer) + PADDING)

    for one in held:
        text = text_of(one)
        assert one.finish_reason == "stop", (one.error, text)
        assert fits(constraint, text), text
    assert free.error is None


def test_what_may_go_on_ends_with_the_models_own_end(grammars: Grammars, tokenizer: Any) -> None:
    grammar = grammars.compile(Constraint("regex", ("a+",)))()
    eos = tokenizer.eos_token_id

    def may_end() -> bool:
        return bool(grammar.mask()[eos // 8] >> (eos % 8) & 1)

    assert not may_end()
    grammar.follow(tokenizer.convert_tokens_to_ids("a"))
    assert may_end()
    assert not grammar.is_complete
    grammar.follow(eos)
    assert grammar.is_complete


@pytest.mark.parametrize("whose", ["model", "request"])
def test_a_piece_of_ordinary_text_ends_no_output_before_it_may_end(
    tokenizer: Any, whose: str
) -> None:
    a, eos, size = tokenizer.convert_tokens_to_ids("a"), tokenizer.eos_token_id, len(tokenizer)
    more_ends = (a,) if whose == "model" else ()
    options = {} if whose == "model" else {"stop_token_ids": (a,)}
    grammars = Grammars(tokenizer, more_ends=more_ends)
    start = grammars.compile(Constraint("regex", ("[ab]{3,6}",)))
    held = [
        sequence(start(), tokenizer, temperature=2.0, seed=seed, **options) for seed in range(12)
    ]
    generate(held, eos, size + PADDING, *more_ends)
    grammars.close()
    for one in held:
        assert one.finish_reason == "stop"
        assert re.fullmatch("[ab]{3,6}", text_of(one))
    assert any(one.token_ids[-1] == a for one in held)


def test_where_other_options_forbid_all_that_fits_that_request_alone_fails(
    grammars: Grammars, tokenizer: Any
) -> None:
    start = grammars.compile(Constraint("choice", ("a",)))
    spelt = map(tokenizer.convert_tokens_to_ids, ("a", "<0x61>"))
    bad = tuple((token,) for token in spelt if token is not None)
    refused = sequence(start(), tokenizer, bad_token_ids=bad)
    held = sequence(start(), tokenizer)

    generate([refused, held], tokenizer.eos_token_id, len(tokenizer) + PADDING)

    assert isinstance(refused.error, RequestError)
    assert str(refused.error).startswith("choice: no token of this model can continue")
    assert text_of(held) == "a"


def test_what_can_not_be_completed_is_an_error_and_no_stop(
    grammars: Grammars, tokenizer: Any
) -> None:
    start = grammars.compile(Constraint("grammar", ('start: "a" C | "b"\nC: /[ab]+/ & /[cd]+/',)))
    held = [sequence(start(), tokenizer, temperature=2.0, seed=seed) for seed in range(20)]
    generate(held, tokenizer.eos_token_id, len(tokenizer) + PADDING)
    assert {text_of(one) for one in held if one.finish_reason == "stop"} == {"b"}
    assert {str(one.error) for one in held if one.finish_reason == "error"} == {
        "grammar: the text so far can't be continued; allowed: one that can always be completed"
    }


def test_a_special_token_s_text_is_refused_by_name(grammars: Grammars, tokenizer: Any) -> None:
    refused = sequence(grammars.compile(Constraint("choice", ("<end>",)))(), tokenizer)
    held = sequence(grammars.compile(Constraint("choice", ("<and>",)))(), tokenizer)

    generate([refused, held], tokenizer.eos_token_id, len(tokenizer) + PADDING)

    assert str(refused.error).startswith("choice: has '<end>', a special token of this model")
    assert text_of(held) == "<and>"


@pytest.mark.parametrize(
    "kind, text",
    [
        ("choice", "<a-call>"),
        ("regex", "<a-call>"),
        ("json_schema", '{"const": "<a-call>"}'),
        ("grammar", 'start: "<a-call>"'),
        ("grammar", 'start: <a-call> | "<a-call>" # <a-call>\n'),
    ],
)
def test_an_added_token_writes_its_text_where_nothing_else_fits(
    kind: str, text: str, tokenizer: Any
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(["<a-call>"])
    grammars = Grammars(tokenizer)
    grammar = grammars.compile(Constraint(kind, (text,)))()
    written = ['"', "<a-call>"] if kind == "json_schema" else ["<a-call>"]
    for token_id in tokenizer.convert_tokens_to_ids(written):
        assert grammar.mask()[token_id // 8] >> (token_id % 8) & 1
        grammar.follow(token_id)
    assert grammar.is_complete is (kind != "json_schema")
    grammars.close()


def test_what_grows_too_large_to_follow_says_so(grammars: Grammars, tokenizer: Any) -> None:
    many = {f"name{number}": {"type": "string"} for number in range(3000)}
    schema = json.dumps({"type": "object", "properties": many})
    grammar = grammars.compile(Constraint("json_schema", (schema,)))()
    written = tokenizer.convert_tokens_to_ids(list('{"name'))
    with pytest.raises(RequestError, match="json_schema: too complex to follow any further"):
        list(map(grammar.follow, written))


class PanicException(BaseException):
    """As the library's own, none of Exception."""


class Broken:
    eos_token_id = 1
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __len__(self) -> int:
        return 2

    @property
    def backend_tokenizer(self) -> Any:
        raise PanicException("index out of bounds")


def letters() -> Any:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a")


@pytest.mark.parametrize(
    "make, said",
    [
        (letters, "can't be used with this model, whose token"),
        (Broken, r".* \(index out of bounds\)"),
        (byte_level, ".* lacks the package llguidance.*pip install"),
    ],
)
def test_a_tokenizer_of_another_kind_is_each_requests_error(
    make: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if make is byte_level:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    grammars = Grammars(make(), 2)
    for _ in range(2):
        with pytest.raises(RequestError, match=f"regex: {said}"):
            grammars.compile(Constraint("regex", ("a",)))
    grammars.close()


def test_a_sequence_that_ended_lets_its_grammar_go(grammars: Grammars, tokenizer: Any) -> None:
    held = sequence(grammars.compile(CONSTRAINTS[0])(), tokenizer)
    held.update()
    assert held.grammar is not None
    held.end("timeout")
    held.update()
    assert held.grammar is None


def test_time_runs_from_the_arrival_on_also_while_a_grammar_is_made() -> None:
    submitted: list[Sequence] = []
    held: list[Take] = []
    tokenizer: Any = NumberTokenizer()
    engine = SimpleNamespace(
        submit=submitted.extend,
        cancel=lambda _: None,
        stop=lambda _: None,
        max_model_len=50,
        setup=SimpleNamespace(options=SimpleNamespace(unload_grace_s=0.0)),
    )
    engine.thread = SimpleNamespace(watchdog=SimpleNamespace(last_step_s=0.0))
    compiler = SimpleNamespace(when_ready=lambda _, start, __: held.append(start), close=list)
    loaded: Any = SimpleNamespace(
        reader=READER,
        compiler=compiler,
        parts=SimpleNamespace(
            tokenizer=tokenizer, config=SimpleNamespace(is_encoder_decoder=False)
        ),
        engine=engine,
        description="",
    )
    responder: Any = SimpleNamespace(request_id="", is_cancelled=lambda: False)
    reception = Reception(loaded, batched=False)
    text = np.array([b"abc"], dtype=np.object_)
    parameters = {"regex": "a", "timeout_ms": 5000}

    reception.take(Request({"text_input": text}, parameters, responder, ["text_output"]))
    prepared_s = time.monotonic()
    held[0]({})

    (deadline_s,) = [sequence.deadline_s for sequence in submitted]
    assert deadline_s is not None
    assert deadline_s < prepared_s + 5
    reception.stop(0.0)


class FakeCompiled:
    """A compilation that ends when it is told to."""

    def __init__(self, constraint: Constraint, told: threading.Event) -> None:
        self._text, self._told = constraint.text, told
        self.num_bytes = 200 * 2**20 if self._text.startswith("large") else 0
        self.has_ended = self.was_killed = False

    def __call__(self) -> Any:
        return None

    @property
    def process(self) -> FakeCompiled:
        return self

    @property
    def is_there(self) -> bool:
        return not self.has_ended

    def close(self) -> None:
        self.has_ended = True

    def wait(self, timeout_s: float) -> bool:
        if self._text == "bad":
            raise RequestError("regex: bad")
        if self._text == "ends":
            self.has_ended = True
        return not self._text.startswith("slow") or self._told.wait(timeout_s)


class Compilation:
    """A Compiler's grammars: compiles ``slow`` when it is told to, fails on ``bad``."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.compiled: list[str] = []
        self.living: weakref.WeakSet[FakeCompiled] = weakref.WeakSet()

    def begin(self, constraint: Constraint, time_limit_s: float) -> FakeCompiled:
        self.compiled.append(constraint.text)
        made = FakeCompiled(constraint, self.told)
        self.living.add(made)
        return made

    def close(self) -> None:
        self.told.set()


class Asking:
    """Asks a Compiler, and waits for what it says."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler

    def begin(self, *texts: str) -> Callable[[], Started | Exception]:
        """Asks; gives a function that waits for the answer."""
        return Told(self.compiler, *(Constraint("regex", (text,)) for text in texts)).wait

    def __call__(self, *texts: str) -> Started | Exception:
        return self.begin(*texts)()


@pytest.fixture
def compilation() -> Compilation:
    return Compilation()


@pytest.fixture
def asking(compilation: Compilation) -> Iterator[Asking]:
    compiler = Compiler(compilation, time_limit_s=600)  # type: ignore[arg-type]
    yield Asking(compiler)
    compiler.close()


@pytest.mark.threat("endless-grammars")
@pytest.mark.parametrize(
    "asked, compiled",
    [
        ([("a", "b"), ("b",), ("a",)], ["a", "b"]),
        ([*((str(n),) for n in range(40)), ("39",), ("0",)], [*map(str, range(40)), "0"]),
        (
            [("large 0",), ("large 1",), ("a",), ("large 1",), ("large 0",)],
            ["large 0", "large 1", "a", "large 0"],
        ),
    ],
    ids=["all", "the last used", "few large ones"],
)
def test_what_was_compiled_is_kept(
    asked: list[tuple[str, ...]], compiled: list[str], asking: Asking, compilation: Compilation
) -> None:
    for texts in asked:
        ready = asking(*texts)
        assert isinstance(ready, dict)
        assert [constraint.text for constraint in ready] == list(texts)
    assert sorted(compilation.compiled) == sorted(compiled)


@pytest.mark.usefixtures("no_collection")
def test_what_is_forgotten_lets_its_process_go(asking: Asking, compilation: Compilation) -> None:
    for number in range(40):
        asking(str(number), f"{number} more")
    assert eventually(lambda: len(compilation.living) == 32)


def test_what_is_refused_is_told_to_each_that_asks(
    asking: Asking, compilation: Compilation
) -> None:
    slow = asking.begin("slow")  # holds up nobody else
    assert str(asking("bad")) == str(asking("a", "bad")) == "regex: bad"
    assert str(asking("ends")) == "regex: too large to prepare, allowed: a smaller one"
    compilation.told.set()
    assert isinstance(slow(), dict)
    asking.compiler.close()
    assert isinstance(asking("a"), OverloadedError)


def test_a_refusal_that_is_kept_keeps_nothing_of_those_that_ask(asking: Asking) -> None:
    refusal = asking("bad")
    assert isinstance(refusal, RequestError)
    frames = len(traceback.extract_tb(refusal.__traceback__))
    assert all(asking("bad") is refusal for _ in range(5))
    assert len(traceback.extract_tb(refusal.__traceback__)) == frames


def test_however_many_may_wait_for_the_same(asking: Asking, compilation: Compilation) -> None:
    waiting = [asking.begin("slow", "a") for _ in range(300)]
    compilation.told.set()
    assert all(isinstance(answer(), dict) for answer in waiting)
    assert sorted(compilation.compiled) == ["a", "slow"]


def test_of_those_that_differ_not_too_many_may_wait(
    asking: Asking, compilation: Compilation
) -> None:
    waiting = [asking.begin(f"slow {number}") for number in range(70)]
    compilation.told.set()
    refused = [answer for answer in waiting if isinstance(answer(), OverloadedError)]
    assert len(refused) == 6


def test_what_takes_too_long_is_refused_and_not_kept(compilation: Compilation) -> None:
    compiler = Compiler(compilation, time_limit_s=0.05)  # type: ignore[arg-type]
    asking = Asking(compiler)
    for _ in range(2):
        said = str(asking("slow"))
        assert said == (
            "regex: takes more than 0.05 s to prepare (max_grammar_s), allowed: a simpler one"
        )
    assert compilation.compiled == ["slow", "slow"]
    compiler.close()


OWN_SPACES = json.dumps({**SCHEMA, "x-guidance": {"whitespace_pattern": ""}})


@pytest.mark.parametrize(
    "constraint", [*CONSTRAINTS, Constraint("json_schema", (OWN_SPACES,))], ids=lambda one: one.kind
)
def test_vllm_builds_the_grammar_that_is_followed_here(constraint: Constraint) -> None:
    """As its backend guidance does: vllm/v1/structured_output/backend_guidance.py."""
    asked = structured_outputs(constraint)
    if "json" in asked:
        defaults: Any = {"whitespace_flexible": True}
        there = LLMatcher.grammar_from_json_schema(asked["json"], defaults=defaults)
    else:
        there = LLMatcher.grammar_from_regex(asked["regex"])
    own = from_tokenizer(byte_level())
    walked = [LLMatcher(own, text) for text in (there, grammar_text(constraint))]
    for _ in range(40):
        theirs, ours = (matcher.compute_bitmask() for matcher in walked)
        assert theirs == ours
        allowed = [i for i in range(8 * len(ours)) if ours[i // 8] >> i % 8 & 1]
        if walked[0].is_stopped() or not allowed:
            break
        token_id = allowed[len(allowed) // 2]
        assert all(matcher.consume_token(token_id) for matcher in walked)
