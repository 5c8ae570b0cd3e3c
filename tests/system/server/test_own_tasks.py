"""Arms, hooks and the response cache on a real server, of tasks that load in a moment. The rest of
routing is tests/model/engine/runtime/test_routing.py's.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_triton.cli.verbs.generate import generate
from tests.scenarios.metrics import settled
from tests.support.own_tasks import use_tasks
from tests.support.triton import (
    DEMO_MODEL,
    ROOT,
    Answer,
    Triton,
    copy_shared,
    copy_task,
    eventually,
    get,
    post_for_events,
    serving,
)

METRICS = (
    "{seen_texts_total: {type: counter, help: Texts by their first letter, labels: [letter]}, "
    "seen_characters: {type: histogram, buckets: [4, 16]}, last_characters: {type: gauge}}"
)
MODELS = f"""\
models:
  - name: m
    task: words
    model: nobody/echo
    options: {{answers: "own:"}}
    canary:
      arms:
        - {{name: stable, weight: STABLE}}
        - {{name: new, weight: NEW, options: {{answers: "new:"}}}}
        - {{name: other, weight: OTHER, to: other}}
  - name: other
    task: words
    model: nobody/echo
    options: {{answers: "other:", answer_s: 0.3}}
  - name: hooked
    task: words
    model: nobody/echo
    streaming: false
    hooks: my_hooks.py
    metrics: {METRICS}
  - name: cached
    task: words
    model: nobody/echo
    streaming: false
    response_cache: true
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
    hooks: my_hooks.py
    metrics: {METRICS}
"""
HOOKS = """\
from hf_triton.hooks import observe


def preprocess(request):
    text = request.text("text_input")
    observe("seen_texts_total", letter=text[:1])
    observe("seen_characters", len(text))
    observe("last_characters", len(text))
    request["text_input"] = text.removeprefix("drop this ")


def postprocess(response):
    response["text_output"] = [f"<{text}>" for text in response.texts("text_output")]
"""


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("own_tasks")
    (folder / "my_hooks.py").write_text(HOOKS)
    templates = folder / "templates"
    copy_shared(templates)
    for name in ("front", "text_generation"):
        shutil.copytree(ROOT / "model_templates" / name, templates / name)
    copy_task("words_task", templates / "words")
    with pytest.MonkeyPatch.context() as patch:
        use_tasks(templates, patch.setattr)
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(models_yaml(90, 10, 0), folder) as running:
            yield running


def models_yaml(stable: int, new: int, other: int) -> str:
    text = MODELS.replace("STABLE", str(stable)).replace("NEW", str(new))
    return text.replace("OTHER", str(other))


def route(triton: Triton, stable: int = 0, new: int = 0, other: int = 0) -> None:
    """Changes the weights of ``m``, and waits until the running model has seen it."""
    repository = triton.server.repository
    config = repository.parent / "models.yaml"
    config.write_text(models_yaml(stable, new, other), encoding="utf-8")
    generate(config, repository)
    wanted = {"stable": stable, "new": new, "other": other}
    name = "hf_triton_arm_weight"
    assert eventually(
        lambda: {arm: number(triton, name, model="m", arm=arm) for arm in wanted} == wanted
    )


def number(triton: Triton, name: str, **labels: str) -> float:
    """A metric, 0 where the model has not told it yet: it does once a second."""
    try:
        return triton.metric(name, **labels)
    except AssertionError:
        return 0.0


def ask(triton: Triton, text: str = "hi") -> str:
    answer = triton.generate("m", text_input=text)
    assert answer.status == 200, answer.body
    return str(answer.body["text_output"])


def ask_many(triton: Triton, times: int) -> Counter[str]:
    """The answers to requests of sixteen callers at once."""
    with ThreadPoolExecutor(16) as pool:
        return Counter(pool.map(lambda _: ask(triton), range(times)))


def test_requests_and_streams_go_to_arms_by_weights_that_change_while_serving(
    triton: Triton,
) -> None:
    # An arm that came up after its model is found within a second; ten requests are a block.
    assert eventually(lambda: "new:hi" in ask_many(triton, 10))
    assert ask_many(triton, 100) == {"own:hi": 90, "new:hi": 10}
    route(triton, new=100)
    url = triton.url("m_stream", "generate_stream")
    status, events = post_for_events(url, {"text_input": "one two three"})
    assert status == 200
    assert [event["text_output"] for event in events] == ["new:one", "new:two", "new:three"]
    assert ask(triton, "one two three") == "new:one two three"


def infer(triton: Triton, model: str, text: str) -> Answer:
    tensor: dict[str, object] = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    return triton.infer(model, {**tensor, "data": [text]})


def outputs_of(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {output["name"]: output["data"] for output in answer.body["outputs"]}


def test_hooks_run_once_for_a_request_through_a_front_and_for_each_piece_of_a_stream(
    triton: Triton,
) -> None:
    request = {"text_input": "drop this Once upon", "max_tokens": 40}
    whole = triton.generate("demo", **request)
    assert whole.status == 200, whole.body
    text = whole.body["text_output"]
    assert text.startswith("<")
    assert text.count("<") == 1
    plain = triton.generate("demo", text_input="Once upon", max_tokens=40)
    assert plain.body["text_output"] == text
    url = triton.url("demo_stream", "generate_stream")
    status, events = post_for_events(url, {**request, "stream": True})
    pieces = [event["text_output"] for event in events]
    assert status == 200
    assert len(pieces) > 2
    assert all(piece.startswith("<") and piece.endswith(">") for piece in pieces)
    assert "".join(piece[1:-1] for piece in pieces) == text[1:-1]


def test_what_hooks_observe_is_on_metrics_by_model(triton: Triton) -> None:
    count = "seen_characters_count"
    before = settled(lambda: number(triton, count, model="hooked"))
    for text in ("Q", "Quite", "Quite a long text, this one"):
        infer(triton, "hooked", text)
    assert eventually(lambda: number(triton, count, model="hooked") == before + 3)
    # Metrics are set one after the other: a scrape may come between two.
    letters = {"model": "hooked", "letter": "Q"}
    assert eventually(lambda: number(triton, "seen_texts_total", **letters) == 3)
    assert eventually(lambda: number(triton, "last_characters", model="hooked") == 27)
    assert triton.metric("seen_characters_bucket", model="demo", le="16") >= 0
    assert "# HELP seen_texts_total Texts by their first letter" in get(triton.metrics_url).body


def test_the_same_request_is_answered_from_the_cache(triton: Triton) -> None:
    first, again = (outputs_of(infer(triton, "cached", "same")) for _ in range(2))
    other = outputs_of(infer(triton, "cached", "other"))
    assert first == again
    assert other["num_computed"] == [first["num_computed"][0] + 1]
    name = "hf_triton_response_cache_hits_total"
    assert eventually(lambda: number(triton, name, model="cached") >= 1)
