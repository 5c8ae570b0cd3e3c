"""Hooks' observations are counted as models.yaml declares them; lines of the log name the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import custom_metrics
import numpy as np
import pytest

from hf_triton.runtime import log
from hf_triton.runtime.errors import HookError
from hf_triton.runtime.metrics import observations, publishing
from hf_triton.runtime.metrics.observations import Metric, Observations, observe
from tests.support.intake_driver import driving
from tests.support.triton import eventually

DECLARED = (
    Metric("answers_total", "counter", "Answers", ("label",)),
    Metric("requests_total", "counter", "Requests"),
    Metric("last_length", "gauge", "Length"),
    Metric("length", "histogram", "Length", (), (1.0, 10.0)),
    Metric("score", "histogram", "Score", ("label",), (0.5,)),
)


def numbers(found: Observations) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in found.families()
    }


def test_each_type_counts_in_its_way() -> None:
    counted = Observations(DECLARED)
    with counted.active():
        observe("answers_total", label="good")
        observe("answers_total", 2, label="good")
        observe("answers_total", label="bad")
        observe("last_length", 5)
        observe("last_length", -3.5)
        for value in (1, np.float32(2), np.int64(99), np.array([3])[0], True):
            observe("length", value)
        observe("score", 0.5, label=b"good")
    found = numbers(counted)
    assert found["answers_total"] == {("good",): 3, ("bad",): 1}
    assert found["requests_total"] == {(): 0}, "there from the first moment on"
    assert found["last_length"] == {(): -3.5}
    assert found["length_bucket"] == {("1",): 2, ("10",): 4, ("+Inf",): 5}
    assert found["length_sum"] == {(): 106}
    assert found["score_count"] == {("good",): 1}


@pytest.mark.parametrize(
    "name, value, labels, message",
    [
        ("other", 1, {}, "metric 'other' is not declared; metrics: has answers_total, requests"),
        ("answers_total", 1, {}, "answers_total: got labels none; declared: label"),
        ("answers_total", 1, {"lable": 1}, "answers_total: got labels lable; declared: label"),
        ("requests_total", 1, {"label": 1}, "requests_total: got labels label; declared: none"),
        ("requests_total", -1, {}, "requests_total: got -1, a counter only grows"),
        ("last_length", float("nan"), {}, "last_length: got float, allowed: a finite number"),
        ("last_length", float("inf"), {}, "last_length: got inf, allowed: a finite number"),
        ("last_length", "3", {}, "last_length: got str, allowed: a finite number"),
        ("last_length", None, {}, "last_length: got NoneType, allowed: a finite number"),
        ("last_length", [1], {}, "last_length: got list, allowed: a finite number"),
    ],
)
def test_what_is_not_declared_is_refused(
    name: str, value: Any, labels: dict[str, Any], message: str
) -> None:
    counted = Observations(DECLARED)
    with counted.active(), pytest.raises(HookError) as caught:
        observe(name, value, **labels)
    assert message in str(caught.value)


def test_a_long_label_is_cut() -> None:
    counted = Observations(DECLARED)
    with counted.active():
        observe("answers_total", label="x" * 5000)
    ((label,),) = numbers(counted)["answers_total"]
    assert label == "x" * observations.MAX_LABEL_CHARACTERS


@pytest.mark.parametrize(
    "given, label", [("a\ud800b", "a?b"), (b"a\xffb", "a\N{REPLACEMENT CHARACTER}b")]
)
def test_a_label_is_text_that_triton_takes(given: str | bytes, label: str) -> None:
    counted = Observations(DECLARED)
    with counted.active():
        observe("answers_total", label=given)
    assert numbers(counted)["answers_total"] == {(label,): 1}


def test_a_metric_that_triton_refuses_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    monkeypatch.setattr(publishing, "PUBLISH_EVERY_S", 0.01)
    kinds = custom_metrics.MetricFamily
    before = kinds("hook_again", "what it was before a reload", kinds.GAUGE)
    hooks = "def preprocess(request): pass\n"

    def num_hits() -> float:  # of all models: other tests' metrics stay
        return sum(custom_metrics.values("hf_triton_response_cache_hits_total").values())

    earlier = num_hits()
    with driving(
        tmp_path, hooks, metrics={"hook_again": {"type": "counter"}}, cache_mib=1
    ) as driver:
        driver.ask("a")
        driver.ask("a")
        assert eventually(lambda: num_hits() == earlier + 1)
    assert before is not None  # it lives until here
    (line,) = log_lines
    assert line.endswith("Family name already exists with different type")


def test_hooks_count_on_metrics_of_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PUBLISH_EVERY_S", 0.01)
    hooks = (
        "from hf_triton.hooks import observe\n"
        "def preprocess(request):\n"
        "    observe('hook_length', len(request.text('text_input')))\n"
        "def postprocess(response):\n"
        "    observe('hook_labels_total', label=response.text('text_output'))\n"
        "    observe('hook_logit', -3)\n"
    )
    declared = {
        "hook_length": {"type": "histogram", "buckets": [2.0]},
        "hook_labels_total": {"type": "counter", "labels": ["label"]},
        "hook_logit": {"type": "histogram", "buckets": [-5.0, 0.0]},
    }
    with driving(tmp_path, hooks, metrics=declared) as driver:
        for text in ("a", "bbb", "a"):
            driver.ask(text)
        value = custom_metrics.value
        assert eventually(lambda: value("hook_logit_sum") == -9)  # counted and published last
        assert value("hook_length_count", model="demo") == 3
        assert value("hook_length_bucket", le="2", instance="demo_0", version="1") == 2
        assert value("hook_labels_total", label="a") == 2
        driver.ask("a")
        assert eventually(lambda: value("hook_logit_sum") == -12), "it falls, and is published"


@pytest.mark.parametrize(
    "message,expected",
    [
        ("a request failed: KeyError", "demo_stream: a request failed: KeyError"),
        ("demo_stream: loaded in 1.0 s", "demo_stream: loaded in 1.0 s"),
        ("demo: quantising to int8, once", "demo: quantising to int8, once"),
        ("[request id: 7] failed", "demo_stream: [request id: 7] failed"),
        ("d: no name of it", "demo_stream: d: no name of it"),
    ],
)
def test_a_line_begins_with_the_models_name(
    message: str, expected: str, log_lines: list[str]
) -> None:
    log.begin("demo_stream")
    for write in (log.info, log.warn, log.error):
        write(message)
    assert log_lines == [f"{letter} {expected}" for letter in "IWE"]


def test_before_the_name_is_known_lines_are_as_they_are(log_lines: list[str]) -> None:
    log.info("torch is imported")
    assert log_lines == ["I torch is imported"]
