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

pytestmark = [pytest.mark.server, pytest.mark.slow]

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
  - name: both
    hooks: my_hooks.py
    metrics: {METRICS}
    response_cache: {{size_mib: 1}}
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
    hooks: my_hooks.py
    metrics: {METRICS}
"""
HOOKS = """\
from pathlib import Path

from hf_triton.hooks import RequestError, observe


def preprocess(request):
    text = request.text("text_input")
    observe("seen_texts_total", letter=text[:1])
    observe("seen_characters", len(text))
    observe("last_characters", len(text))
    while text.startswith("until ") and not Path(text[6:]).exists():
        Path(text[6:] + ".awaited").touch()
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


def test_hooks_change_requests_and_answers(hooked: Triton) -> None:
    answer = hooked.generate("hooked", text_input="drop this good")
    assert (answer.status, answer.body["text_output"]) == (200, "<good>")


def test_what_goes_wrong_in_a_hook_is_its_requests_own(hooked: Triton) -> None:
    texts = ["good", "raise", "refuse", "spoil"] * 8
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: ask(hooked, "hooked", text), texts))
    for text, answer in zip(texts, answers, strict=True):
        if text == "good":
            assert outputs_of(answer)["text_output"] == ["<good>"]
            continue
        status, message = {
            "raise": (500, "my_hooks.py:14: preprocess raised KeyError"),
            "refuse": (400, "text_input: refused by a hook"),
            "spoil": (500, "my_hooks.py:22: postprocess: output 'label': got int, allowed: a text"),
        }[text]
        assert answer.status == status
        assert message in answer.body["error"]
    assert "secret" not in "".join(hooked.log)


def test_a_slow_hook_holds_up_nobody(hooked: Triton, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, hooked, "hooked", f"until {go_on}")
        assert eventually(go_on.with_suffix(".awaited").exists)
        assert ask(hooked, "hooked", "quick").status == 200
        assert not slow.done()
        go_on.touch()
    assert outputs_of(slow.result())["text_output"] == [f"<until {go_on}>"]


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


def test_a_hooks_own_refusal_passes_through_a_front(hooked: Triton) -> None:
    answer = hooked.infer("demo", text_input("refuse"))
    assert (answer.status, answer.body["error"]) == (400, "text_input: refused by a hook")
    assert hooked.infer("demo", text_input("raise")).status == 500


def text_input(text: str) -> dict[str, object]:
    return {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [text]}


def test_what_hooks_observe_is_on_metrics_by_model(hooked: Triton) -> None:
    before = settled(lambda: count(hooked, "seen_characters_count", model="hooked"))
    for text in ("Q", "Quite", "Quite a long text, this one"):
        ask(hooked, "hooked", text)
    assert eventually(lambda: count(hooked, "seen_texts_total", model="hooked", letter="Q") == 3)
    assert eventually(lambda: count(hooked, "last_characters", model="hooked") == 27)
    number = "seen_characters_count"
    assert eventually(lambda: count(hooked, number, model="hooked") == before + 3)
    assert hooked.metric("seen_characters_bucket", model="both", le="16") >= 0, "before it is asked"
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


def test_a_cached_answer_has_the_outputs_that_are_asked_for(hooked: Triton) -> None:
    for names in (("label",), ("text_output",), ("label", "num_computed"), ("label",)):
        assert set(outputs_of(ask(hooked, "cached", "listed", *names))) == set(names)
    assert len(outputs_of(ask(hooked, "cached", "listed"))) == 3


def test_parameters_count_in_the_cache_and_request_ids_do_not(hooked: Triton) -> None:
    computed = [
        outputs_of(ask(hooked, "cached", "parameters", **parameters))["num_computed"][0]
        for parameters in ({}, {"top_k": 1}, {"top_k": 2}, {}, {"top_k": 1})
    ]
    assert computed[3:] == computed[:2]
    assert len(set(computed)) == 3
    by_id = [hooked.generate("cached", text_input="id", id=str(n)).body for n in range(2)]
    assert by_id[0]["num_computed"] == by_id[1]["num_computed"]


def test_an_error_is_an_error_the_second_time_too(hooked: Triton) -> None:
    for _ in range(3):
        answer = ask(hooked, "cached", "fail")
        assert (answer.status, answer.body["error"]) == (400, "text_input: got what it refuses")


def test_hooks_see_requests_that_the_cache_answers(hooked: Triton) -> None:
    answers = [outputs_of(ask(hooked, "both", text)) for text in ("drop this W", "W", "W")]
    assert answers[0] == answers[1] == answers[2], "the key is what the hook made of them"
    assert answers[0]["text_output"] == ["<W>"]
    assert eventually(lambda: count(hooked, "seen_texts_total", model="both", letter="W") == 2)
    name = "hf_triton_response_cache_hits_total"
    assert eventually(lambda: count(hooked, name, model="both") >= 2)


def test_a_hooks_file_that_cannot_be_imported_says_so_in_one_line(hooked: Triton) -> None:
    # A folder of its own: where a loaded model's reload fails, 24.10 does not stop gracefully.
    repository = hooked.server.repository
    shutil.copytree(repository / "both", repository / "broken")
    config = repository / "broken" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "both"', 'name: "broken"'))
    (repository / "broken" / "1" / "hooks.py").write_text(f"import no_such_module\n{HOOKS}")
    answer = hooked.control("broken", "load")
    expected = "hooks: my_hooks.py:1: ModuleNotFoundError: No module named 'no_such_module'"
    assert answer.status == 400
    assert expected in answer.body["error"]
