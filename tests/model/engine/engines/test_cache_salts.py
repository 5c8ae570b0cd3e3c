"""Nobody finds out by the metrics what another one's prompt began with: the attacks themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engine.metrics import REUSED_STEP, rounded
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.driving import Answers, running, setup
from tests.support.tiny_models import VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.usefixtures("storage_kind")
DIGITS = range(10)
CODE_LENGTH = 4
HEAD = [20 + number for number in range(40)]  # what a prompt is known to begin with
TAIL = [90, 91, 92]
NOT_TOLD = "reused_prompt_tokens"  # by metrics, of a single request
CHUNK = 8  # tokens of a step


def new_engine() -> InFlightEngine:
    model = tiny_model("llama")
    return InFlightEngine(setup(model, max_num_seqs=4, max_num_batched_tokens=CHUNK))


@pytest.fixture
def engine() -> Iterator[Engine]:
    with running(new_engine()) as engine:
        yield engine


class Client:
    """Somebody who asks an engine."""

    def __init__(self, engine: Engine, cache_salt: str | None = None) -> None:
        self._engine = engine
        self._salt = cache_salt

    def ask(self, prompt: list[int]) -> None:
        """Returns when it is answered."""
        answers = Answers()
        sequence = answers.sequence(0, prompt, max_tokens=1)
        sequence.cache_salt = self._salt
        self._engine.submit([sequence])
        answers.completion(0)
        while self._engine.has_work() or self._engine.thread.num_unfinished:
            pass  # its slot is given back between two steps


def published(engine: Engine) -> dict[str, float]:
    """All numbers but times, which differ by themselves."""
    return {
        f"{family.name} {sorted(sample.labels.items())}": sample.value
        for family in engine.families()
        if "seconds" not in family.name
        for sample in family.samples
    }


def code_by(attacker: Client, head: list[int], read: Callable[[], float]) -> tuple[int, ...]:
    """A code behind ``head``, digit by digit: the guess that reuses the most tokens is right."""
    found: list[int] = []
    for _ in range(CODE_LENGTH):
        gains = []
        for digit in DIGITS:
            before = read()
            attacker.ask([*head, *found, digit, 95])
            gains.append(read() - before)
        found.append(gains.index(max(gains)))
    return tuple(found)


def secrets(count: int) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Yields the part of a prompt that an attacker knows, no two alike, and the code behind it."""
    draw = random.Random(3)
    for number in range(count):
        code = tuple(draw.randrange(10) for _ in range(CODE_LENGTH))
        yield [60 + number, *HEAD], code


@pytest.mark.parametrize("storage_kind", ["compiled"], indirect=True)
def test_exact_numbers_of_reused_tokens_tell_a_code_in_forty_requests(
    engine: Engine,
) -> None:
    """The attack is right: who reads the engine's own count has the code. Of pages he would have to
    guess 16 tokens at once.
    """
    metrics = engine.metrics
    for head, code in secrets(3):
        Client(engine).ask([*head, *code, *TAIL])
        assert code_by(Client(engine), head, lambda: metrics.num_reused_prompt_tokens) == code


@pytest.mark.threat("guesses-in-metrics")
@pytest.mark.parametrize("storage_kind", ["compiled"], indirect=True)
def test_what_is_published_does_not_tell_it(engine: Engine) -> None:
    right = 0
    name = "hf_triton_reused_prompt_tokens_total []"
    for head, code in secrets(12):
        Client(engine).ask([*head, *code, *TAIL])
        found = code_by(Client(engine), head, lambda: published(engine)[name])
        right += sum(one == other for one, other in zip(found, code, strict=True))
    assert right <= 20  # of 48; by chance 5, and more than 20 in one of ten million runs


@pytest.mark.threat("guesses-in-metrics")
@pytest.mark.parametrize("storage_kind", ["few pages"], indirect=True)
@pytest.mark.parametrize("num_more", range(CHUNK + 1))
def test_no_other_number_depends_on_what_was_reused(num_more: int) -> None:
    """Neither the number of steps that a prompt takes, nor how many prefixes are kept: the last
    token of 35 is right or wrong, and ``num_more`` that nobody sent before come after it.
    """
    told = []
    for last in (HEAD[34], VOCAB_SIZE - 1):
        with running(new_engine()) as engine:
            Client(engine).ask([*HEAD, 1, 2, 3])
            Client(engine).ask([*HEAD[:34], last, *[95] * num_more])
            told.append({k: v for k, v in published(engine).items() if NOT_TOLD not in k})
    assert told[0] == told[1]


def test_a_rounded_total_is_right_on_average() -> None:
    total = sum(rounded(300) for _ in range(20_000))
    assert total % REUSED_STEP == 0
    # One standard deviation is 466 * sqrt(20,000), 1.1 % of the true value.
    assert 0.92 < total / (20_000 * 300) < 1.08
    assert rounded(0) == 0
    assert rounded(4 * REUSED_STEP) == 4 * REUSED_STEP
