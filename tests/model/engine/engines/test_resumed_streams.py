"""A stream whose process has died goes on in another engine as it would have gone on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hf_triton.text_generation.engine.generation_rules import decoder_start
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.model.engine.engines.test_preemption import NUM, load
from tests.support.driving import Answers, running, setup
from tests.support.tiny_models import BART, random_encoder_decoder, tiny_model

OPTIONS: dict[str, Any] = {"max_num_seqs": 5, "max_num_batched_tokens": 24, "max_model_len": 64}


def made(name: str) -> Any:
    if name == "bart":
        return random_encoder_decoder("bart", **BART, forced_bos_token_id=4)
    return tiny_model("llama" if name == "drafts" else name)


@pytest.mark.parametrize(
    "name, storage_kind",
    [
        *(("mamba2", "compiled"), ("bart", "compiled")),
        *(("llama", "few pages"), ("drafts", "few pages")),
    ],
    indirect=["storage_kind"],
)
def test_goes_on_as_it_would_have_gone_on(name: str, storage_kind: str) -> None:
    answers, rnd = Answers(), random.Random(5)
    options = {**OPTIONS, **({"speculative_method": "ngram"} if name == "drafts" else {})}
    with running(InFlightEngine(setup(made(name), **options))) as engine:
        start = decoder_start(engine.setup.model)
        asked: dict[str, Any] = {"max_tokens": 24, "streams": True, "start": start}
        engine.submit(load(answers, **asked))
        expected = [answers.completion(number) for number in range(NUM)]
    with running(InFlightEngine(setup(made(name), **options))) as engine:
        again = load(answers, NUM, **asked)
        for sequence, whole in zip(again, expected, strict=True):
            cut = rnd.randrange(1, len(whole.token_ids))
            ids = list(whole.token_ids[:cut])
            sequence.begins_with = [ids[: cut // 2], [], ids[cut // 2 :]]
        engine.submit(again)
        found = [answers.completion(NUM + number) for number in range(NUM)]
        assert engine.metrics.num_prompt_tokens == 0  # they were counted before
    assert found == expected
