"""Hooks, their metrics and the response cache on a real server, around a whole model and around
one that streams through a front.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from generator.spec import task_folders
from tests.scenarios.metrics import settled
from tests.support.triton import (
    DEMO_MODEL,
    ROOT,
    Answer,
    Triton,
    copy_shared,
    copy_task,
    eventually,
    get,
    post,
    post_for_events,
    serving,
)

METRICS = (
    "{seen_texts_total: {type: counter, help: Texts by their first letter, labels: [letter]}, "
    "seen_characters: {type: histogram, buckets: [4, 16]}, last_characters: {type: gauge}}"
)
MODELS = f"""\
defaults: {{task: counting, model: nobody/counting}}
models:
  - name: hooked
    hooks: my_hooks.py
    metrics: {METRICS}
  - name: cached
    response_cache: true
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
    hooks: my_hooks.py
    metrics: {METRICS}
"""
HOOKS = """\
from hf_triton.hooks import RequestError, observe


def preprocess(request):
    text = request.text("text_input")
    observe("seen_texts_total", letter=text[:1])
    observe("seen_characters", len(text))
    observe("last_characters", len(text))
    if text == "raise":
        raise KeyError("secret-" + text)
    if text == "refuse":
        raise RequestError("text_input: refused by a hook")
    request["text_input"] = text.removeprefix("drop this ")


def postprocess(response):
    if response.text("text_output") == "spoil":
        response["label"] = 3
    response["text_output"] = [f"<{text}>" for text in response.texts("text_output")]
"""


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("hooks")
    (folder / "my_hooks.py").write_text(HOOKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_folders, "default_directory", lambda: folder / "templates")
        patch.setenv("OMP_NUM_THREADS", "1")
        add_templates(folder / "templates")
        with serving(MODELS, folder) as running:
            yield running


def add_templates(folder: Path) -> None:
    for name in ("front", "text_generation"):
        shutil.copytree(ROOT / "model_templates" / name, folder / name)
    copy_task("counting_task", folder / "counting")
    copy_shared(folder)


def ask(triton: Triton, model: str, text: str, *outputs: str, **parameters: Any) -> Answer:
    body = {
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [text]}],
        "parameters": parameters,
        **({"outputs": [{"name": name} for name in outputs]} if outputs else {}),
    }
    return post(triton.url(model, "infer"), body)


def outputs_of(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {output["name"]: output["data"] for output in answer.body["outputs"]}


def test_what_goes_wrong_in_a_hook_is_its_requests_own(hooked: Triton) -> None:
    texts = ["good", "raise", "refuse", "spoil"] * 8
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: ask(hooked, "hooked", text), texts))
    for text, answer in zip(texts, answers, strict=True):
        if text == "good":
            assert outputs_of(answer)["text_output"] == ["<good>"]
            continue
        status, message = {
            "raise": (500, "my_hooks.py:10: preprocess raised KeyError"),
            "refuse": (400, "text_input: refused by a hook"),
            "spoil": (500, "my_hooks.py:18: postprocess: output 'label': got int, allowed: a text"),
        }[text]
        assert answer.status == status
        assert message in answer.body["error"]
    assert "secret" not in "".join(hooked.log)


def test_hooks_run_once_for_a_request_through_a_front_and_for_each_piece_of_a_stream(
    hooked: Triton,
) -> None:
    request = {"text_input": "drop this Once upon", "max_tokens": 40}
    whole = hooked.generate("demo", **request)
    assert whole.status == 200, whole.body
    text = whole.body["text_output"]
    assert text.startswith("<")
    assert text.count("<") == 1
    plain = {"text_input": "Once upon", "max_tokens": 40}
    assert hooked.generate("demo", **plain).body["text_output"] == text
    url = hooked.url("demo_stream", "generate_stream")
    status, events = post_for_events(url, {**request, "stream": True})
    pieces = [event["text_output"] for event in events]
    assert status == 200
    assert len(pieces) > 2
    assert all(piece.startswith("<") and piece.endswith(">") for piece in pieces)
    assert "".join(piece[1:-1] for piece in pieces) == text[1:-1]


def test_what_hooks_observe_is_on_metrics_by_model(hooked: Triton) -> None:
    before = settled(lambda: count(hooked, "seen_characters_count", model="hooked"))
    for text in ("Q", "Quite", "Quite a long text, this one"):
        ask(hooked, "hooked", text)
    assert eventually(lambda: count(hooked, "seen_texts_total", model="hooked", letter="Q") == 3)
    assert eventually(lambda: count(hooked, "last_characters", model="hooked") == 27)
    number = "seen_characters_count"
    assert eventually(lambda: count(hooked, number, model="hooked") == before + 3)
    assert hooked.metric("seen_characters_bucket", model="demo", le="16") >= 0
    assert "# HELP seen_texts_total Texts by their first letter" in get(hooked.metrics_url).body


def count(triton: Triton, name: str, **labels: str) -> float:
    try:
        return triton.metric(name, **labels)
    except AssertionError:
        return 0.0


def test_the_same_request_is_answered_from_the_cache(hooked: Triton) -> None:
    first, again = (outputs_of(ask(hooked, "cached", "same")) for _ in range(2))
    other = outputs_of(ask(hooked, "cached", "other"))
    assert first == again
    assert other["num_computed"] == [first["num_computed"][0] + 1]
    name = "hf_triton_response_cache_hits_total"
    assert eventually(lambda: count(hooked, name, model="cached") >= 1)
