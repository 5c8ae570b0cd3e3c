"""The engine that a model gets, and the one log line if it is not the first choice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_triton.runtime.attention import ATTENTION_NAME
from hf_triton.runtime.errors import LoadError
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engines.in_flight import in_flight_engine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.forward.paged.page_runner import PagedRunner
from hf_triton.text_generation.forward.transformers.cache_runner import CacheRunner
from hf_triton.text_generation.forward.transformers.encoder_decoder import EncoderDecoderRunner
from hf_triton.text_generation.generation_loading import start_from_setup
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import (
    PHI3_LONG,
    T5,
    mixed_load,
    random_encoder_decoder,
    random_model,
    reference,
    shrunk_model,
    tiny_model,
)

NOTHING_KEPT = "it keeps nothing of earlier tokens in the cache that it is given"
INSTEAD = "use engine: generate or auto"


def started(model: Any, **options: Any) -> Engine:
    return start_from_setup("tiny", setup(model, **{"max_num_seqs": 4, **options}))


@pytest.mark.parametrize("name, why", [
    ("openai-gpt", NOTHING_KEPT),
    ("cpmant", "layer 0 keeps 34 keys and 34 values"),
    ("minimax", "MiniMax uses cache of its own"),
    ("deepseek_v32", "layer 0 keeps earlier tokens in a"),
    ("rwkv", NOTHING_KEPT),
    ("xlstm", "it needs a cache of its own, with rnn_state"),
])  # fmt: skip
def test_what_cannot_be_held_goes_to_generate_with_one_line(
    name: str, why: str, log_lines: list[str]
) -> None:
    model = shrunk_model(name)
    asked = mixed_load(6)
    expected = reference(model, asked)
    engine = started(model)
    try:
        assert engine.name == "generate"
        line, *others = log_lines
        assert line.startswith(f"I tiny: engine generate, because {why}")
        assert all(one.startswith("I generates in batches of ") for one in others)
        assert generate_all(engine, asked, at_first=5) == expected
    finally:
        engine.stop()


@pytest.mark.usefixtures("not_fused")
def test_each_way_that_was_tried_is_named(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    for runner in (PagedRunner, CacheRunner):
        monkeypatch.setattr(runner, "forward", off_by(0.05, runner.forward))
    engine = started(tiny_model("llama"))
    engine.stop()
    assert engine.name == "generate"
    (line,) = log_lines
    assert line.startswith(
        "I tiny: engine generate, because no runner's logits in flight match its own generate's "
        "(FUSED: UnsupportedLayersError: not here; packed and cache and cache, whole prompts: "
    )
    assert line.endswith(": logits differ by 0.05 of their range, allowed is 0.001)")


@pytest.mark.usefixtures("not_fused")
def test_in_bfloat16_logits_may_differ_by_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def runner() -> str:
        with running(InFlightEngine(setup(model.to(torch.bfloat16), max_num_seqs=4))) as engine:
            name: str = engine.runner.name  # type: ignore[attr-defined]
            return name

    model = tiny_model("llama")
    own_attention = model.config._attn_implementation
    assert runner() == "packed"
    model.set_attn_implementation(own_attention)
    monkeypatch.setattr(PagedRunner, "forward", off_by(0.05, PagedRunner.forward))
    assert runner() == "cache"


@pytest.mark.usefixtures("not_fused")
def test_a_part_that_refuses_its_own_attention_is_given_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("llama")
    given = type(model).set_attn_implementation

    def refuse(self: Any, name: str) -> None:
        if name != ATTENTION_NAME:
            raise ValueError("does not support an attention implementation through sdpa yet")
        given(self, name)

    monkeypatch.setattr(type(model), "set_attn_implementation", refuse)
    with running(InFlightEngine(setup(model, max_num_seqs=4))) as engine:
        assert engine.runner.name == "packed"  # type: ignore[attr-defined]


def off_by(share: float, forward: Any) -> Any:
    """A runner's forward whose first logit is wrong by a share of the logits' range."""

    def wrong(runner: Any, step: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(runner, step).clone()
        if len(logits):
            logits[:, 0] += share * (logits.amax(-1) - logits.amin(-1))
        return logits

    return wrong


def test_an_encoder_decoder_that_differs_goes_to_generate_with_one_line(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = off_by(0.05, EncoderDecoderRunner.forward)
    monkeypatch.setattr(EncoderDecoderRunner, "forward", wrong)
    engine = started(random_encoder_decoder("t5", **T5))
    engine.stop()
    assert engine.name == "generate"
    assert len(log_lines) == 1
    why = "encoder-decoder and encoder-decoder, equal lengths: logits differ by 0."
    assert log_lines[0].startswith(f"I tiny: engine generate, because {why}")


def test_a_rotary_embedding_that_changes_with_length_is_in_flight_up_to_there(
    log_lines: list[str],
) -> None:
    model, asked = random_model("phi3", **PHI3_LONG), mixed_load(6)
    expected = reference(model, asked)
    engine = started(model)
    try:
        assert engine.description.startswith(
            "in_flight engine (packed), 16 pages of 16 tokens, at most 4 sequences of 64"
        )
        assert generate_all(engine, asked, at_first=5) == expected
    finally:
        engine.stop()
    why = "UnsupportedLayersError: its rotary embedding is of the type longrope"
    assert log_lines == [f"I run by packed; not fused: {why}"]
    engine = started(random_model("phi3", **PHI3_LONG), max_model_len=100)
    engine.stop()
    assert engine.name == "generate"
    why = "one sequence of more than 64 tokens changes the rotary embedding of all"
    assert log_lines[1:] == [
        f"I tiny: engine generate, because {why}; lower max_model_len to 64 for engine in_flight"
    ]


def test_in_flight_asked_for_by_name_is_an_error_where_it_cannot_be() -> None:
    with pytest.raises(LoadError) as raised:
        started(shrunk_model("openai-gpt"), engine="in_flight")
    expected = f"engine: got in_flight, but it can't hold this model: {NOTHING_KEPT}; {INSTEAD}"
    assert str(raised.value) == expected


def test_a_cache_that_does_not_fit_is_an_error_and_no_reason_for_generate(
    log_lines: list[str],
) -> None:
    with pytest.raises(LoadError, match=r"^the KV cache does not fit: one sequence of 16"):
        started(tiny_model("llama"), kv_cache_gib=1e-5)
    assert log_lines == []


@pytest.mark.parametrize("asked, used", [("auto", "in_flight"), ("generate", "generate")])
def test_the_first_choice_and_one_by_name_are_taken_without_a_line(
    asked: str, used: str, log_lines: list[str]
) -> None:
    model = tiny_model("mistral", sliding_window=23)
    engine = started(model, engine=asked)
    engine.stop()
    assert engine.name == used
    assert log_lines == []
    assert model.config.sliding_window == 23  # as before the runner was chosen


@pytest.mark.usefixtures("not_fused")
def test_a_runner_that_fails_in_the_warm_up_leads_to_generate(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("view size is not compatible")

    monkeypatch.setattr(in_flight_engine, "warm_up", fail)
    model = tiny_model("llama")
    asked = mixed_load(3)
    expected = reference(model, asked)
    engine = started(model)
    try:
        assert engine.name == "generate"
        assert generate_all(engine, asked, at_first=2) == expected
    finally:
        engine.stop()
    assert any("RuntimeError: view size is not compatible" in line for line in log_lines)
    with pytest.raises(LoadError, match=INSTEAD):
        started(tiny_model("llama"), engine="in_flight")
