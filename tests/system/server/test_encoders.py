"""Encoders, single ones and ensembles, on a real server while others ask for nonsense, ask too
much, or leave: everyone gets exactly their own answer, or in words what is wrong.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wire import Reply, Request, strings

from tests.scenarios.metrics import settled
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.served_encoder import request, rows, tensor
from tests.support.tiny_encoders import texts, tiny_encoder
from tests.support.triton import Triton, eventually, serving

CLASSIFIER = "AutoModelForSequenceClassification"
LONG = " ".join(texts(6_500, longest=60))  # a megabyte
MANY = texts(4_000, longest=60)  # a second and more
MODELS: list[dict[str, Any]] = [
    {"name": "embed", "task": "feature-extraction", "model": "./bert"},
    {
        "name": "rank",
        "task": "text-classification",
        "model": "./classifier",
        "max_batch_size": 16,
    },
    {"name": "reader", "task": "question-answering", "model": "./reader"},
]
STEPS: list[dict[str, Any]] = [  # the first two as ensembles
    {
        **MODELS[0],
        "name": "embed_steps",
        "layout": "ensemble",
        "ensemble": {"tokenizer_instances": 2},
    },
    {**MODELS[1], "name": "rank_steps", "layout": "ensemble"},
]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("encoders")
    tiny_encoder("bert", "AutoModel", folder / "bert")
    tiny_encoder("roberta", CLASSIFIER, folder / "classifier", num_labels=3)
    tiny_encoder("deberta-v2", "AutoModelForQuestionAnswering", folder / "reader")
    defaults = {"dtype": "float32"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        models_yaml = json.dumps({"defaults": defaults, "models": [*MODELS, *STEPS]})
        with serving(models_yaml, folder) as running:
            yield running


def ask(triton: Triton, number: int, model: str, asked: Request) -> Reply:
    """By HTTP and by gRPC in turns."""
    endpoint = (HttpEndpoint if number % 2 else GrpcEndpoint)(triton)
    return endpoint.infer(model, asked)


def all_at_once(triton: Triton, asked: Sequence[tuple[str, Request]]) -> list[Reply]:
    """A thread and a connection for each."""
    with ThreadPoolExecutor(len(asked)) as pool:
        waiting = [pool.submit(ask, triton, n, *one) for n, one in enumerate(asked)]
        return [future.result() for future in waiting]


def assert_same(one: Reply, other: Reply) -> None:
    """Equal texts, and numbers but for float noise."""
    assert one.ok, one.error
    assert other.ok, other.error
    assert one.outputs.keys() == other.outputs.keys()
    for name, array in one.outputs.items():
        if array.dtype != np.object_:
            np.testing.assert_allclose(array, other.outputs[name], atol=1e-4)
        elif name == "output":
            found, expected = (json.loads(r.texts("output")[0]) for r in (one, other))
            assert found["answer"] == expected["answer"]
            assert found["score"] == pytest.approx(expected["score"], abs=1e-4)
        else:
            assert array.tolist() == other.outputs[name].tolist()


def mixed(count: int, models: Sequence[str]) -> list[tuple[str, Request]]:
    """Requests of all kinds; each has a text of its own."""
    draw = random.Random(3)
    found = []
    for number, text in enumerate(texts(count, longest=100)):
        model = models[number % len(models)]
        if model.startswith("embed"):
            found.append((model, request(text_input=text, truncate=True)))
        elif model == "rank":
            column = [text, "a cat", *texts(draw.randint(0, 3), seed=number)]
            found.append((model, rows(text_input=column, truncate=[True] * len(column))))
        else:
            found.append((model, request(question="where is Anna", context=text)))
    return found


def test_64_clients_of_mixed_lengths_get_each_exactly_their_own_answer(triton: Triton) -> None:
    asked = mixed(64, ("embed", "embed_steps", "reader"))
    alone = [GrpcEndpoint(triton).infer(name.partition("_")[0], one) for name, one in asked]
    for found, expected in zip(all_at_once(triton, asked), alone, strict=True):
        assert_same(found, expected)


BAD: list[tuple[str, Request, str]] = [  # one of each way that a request can be wrong
    ("reader", request(question="who"), "context: missing, send context and question together"),
    ("embed", request(text_input=LONG), "at most 65536 where 128 tokens fit; send truncate"),
    ("embed", request(text_input=b"caf\xe9"), "text_input: not valid UTF-8 at byte 3"),
    ("embed", Request({"text_input": np.array([1], dtype=np.int32)}), "data-type"),
    ("embed", Request({"text_input": strings("a")}, {"trucate": True}), "did you mean truncate?"),
    ("rank", rows(text_input=["a cat", "", "a dog"]), "text_input: got an empty text"),
]


def test_every_kind_of_bad_request_is_refused_and_its_neighbours_are_right(triton: Triton) -> None:
    good = mixed(2 * len(BAD), ("embed", "reader"))
    alone = [GrpcEndpoint(triton).infer(*one) for one in good]
    bad = [(model, asked) for model, asked, _ in BAD]
    asked = [one for three in zip(good[::2], bad, good[1::2], strict=True) for one in three]

    replies = all_at_once(triton, asked)

    for (_, _, message), reply in zip(BAD, replies[1::3], strict=True):
        assert (reply.status, message in reply.error) == (400, True), reply
    neighbours = [one for pair in zip(replies[::3], replies[2::3], strict=True) for one in pair]
    for found, expected in zip(neighbours, alone, strict=True):
        assert_same(found, expected)


def test_callers_that_cancel_while_they_wait_cost_nothing(triton: Triton) -> None:
    name = "hf_triton_requests_total"
    before = triton.metric(name, model="embed", outcome="cancelled")
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as leaving:
        waiting = request(input_text=MANY, truncate=True)  # which keeps the model busy for a while
        staying = pool.submit(GrpcEndpoint(triton).infer, "embed", waiting)
        for _ in range(8):
            leaving.enter_context(GrpcEndpoint(triton).cancelled_infer("embed", waiting))
        # One that is cancelled before the model has it is not counted.
        assert eventually(lambda: triton.metric("hf_triton_open_requests", model="embed") >= 4)
        leaving.close()
        assert staying.result().ok
    assert eventually(lambda: triton.metric(name, model="embed", outcome="cancelled") >= before + 3)
    assert GrpcEndpoint(triton).infer("embed", request(text_input="a cat")).ok


def test_what_is_counted_adds_up(triton: Triton) -> None:
    assert eventually(lambda: triton.metric("hf_triton_open_requests", model="embed") == 0)
    before = settled(lambda: counted(triton))
    good = [("embed", request(text_input=text)) for text in texts(20)]
    bad = [("embed", request(text_input=LONG))] * 5
    replies = all_at_once(triton, [*good, *bad])
    num_tokens = sum(
        int(GrpcEndpoint(triton).infer(*counting(one)).outputs["num_input_tokens"][0])
        for one in good
    )
    expected = {"ok": 40, "refused": 5, "error": 0, "tokens": 2 * num_tokens, "inputs": 40}
    assert [reply.status for reply in replies] == [200] * 20 + [400] * 5
    assert eventually(
        lambda: {name: value - before[name] for name, value in counted(triton).items()} == expected
    ), counted(triton)


def counting(asked: tuple[str, Request]) -> tuple[str, Request]:
    model, one = asked
    flag = {"return_num_input_tokens": tensor(True)}
    return model, Request({**one.tensors, **flag}, outputs=("num_input_tokens",))


def counted(triton: Triton) -> dict[str, float]:
    outcomes = {
        word: triton.metric("hf_triton_requests_total", model="embed", outcome=word)
        for word in ("ok", "refused", "error")
    }
    tokens = triton.metric("hf_triton_input_tokens_total", model="embed")
    inputs = triton.metric("hf_triton_step_inputs_sum", model="embed")
    return {**outcomes, "tokens": tokens, "inputs": inputs}


def test_unloading_and_loading_under_load_leaves_nobody_without_an_answer(triton: Triton) -> None:
    expected = GrpcEndpoint(triton).infer("reader", question())
    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(ask, triton, n, "reader", question()) for n in range(200)]
        assert triton.control("reader", "unload").status == 200
        assert triton.control("reader", "load").status == 200
        replies = [future.result() for future in waiting]
    # Not found, or not ready, is Triton's own word for a model that is unloaded.
    refused = [reply for reply in replies if not reply.ok]
    assert all(reply.status in (400, 404, 503) for reply in refused), refused[:3]
    assert all(
        "unload" in r.error
        or "not ready" in r.error
        or "not found" in r.error
        or "unknown model" in r.error
        for r in refused
    ), refused[:3]
    for reply in replies:
        if reply.ok:
            assert_same(reply, expected)
    assert_same(GrpcEndpoint(triton).infer("reader", question()), expected)


def question() -> Request:
    return request(question="where is Anna", context="Anna lives in a big house in Paris. " * 8)


def test_models_that_cannot_serve_say_why_in_one_line_while_others_serve(
    triton: Triton, tmp_path: Path
) -> None:
    tiny_encoder("bert", "AutoModel", tmp_path / "no-head")
    broken = tiny_encoder("bert", CLASSIFIER, tmp_path / "broken-tokenizer") / "tokenizer.json"
    broken.write_text(broken.read_text()[:2000])
    expected = {
        "no-head": "it is no model for text-classification",
        "broken-tokenizer": "its tokenizer: JSONDecodeError: ",
    }
    with ThreadPoolExecutor(len(expected)) as pool:
        loading = {}
        for name in expected:
            add_copy(triton, "rank", name, tmp_path / name)
            loading[name] = pool.submit(triton.control, name, "load")
        while not all(answer.done() for answer in loading.values()):
            assert GrpcEndpoint(triton).infer("embed", request(text_input="a cat")).ok
    for name, text in expected.items():
        answer = loading[name].result()
        assert (answer.status, text in answer.body["error"]) == (400, True), answer
        assert eventually(partial(is_told_in_one_line, triton, f"{name}: ", text)), name


def is_told_in_one_line(triton: Triton, *words: str) -> bool:
    line = next((line for line in triton.log if all(word in line for word in words)), "")
    return bool(line) and "Traceback" not in line


def add_copy(triton: Triton, model: str, name: str, files: Path) -> None:
    """A second model in the repository, of other files: a failed reload of one that is loaded
    keeps 24.10 from stopping gracefully.
    """
    repository = triton.server.repository
    shutil.copytree(repository / model, repository / name)
    config = repository / name / "config.pbtxt"
    config.write_text(config.read_text().replace(f'name: "{model}"', f'name: "{name}"', 1))
    path = repository / name / "1" / "model.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "model": str(files)}))


@pytest.mark.threat("texts-in-logs")
def test_no_text_of_a_caller_reaches_the_servers_log(triton: Triton) -> None:
    secret = "SecretThatNobodyMaySee"
    for value in (secret, secret * 200, secret.encode() + b"\xff"):
        GrpcEndpoint(triton).infer("embed", request(text_input=value))
        GrpcEndpoint(triton).infer("reader", request(question="who", context=value))
        GrpcEndpoint(triton).infer("rank", rows(text_input=[value]))
    log = "\n".join(triton.log)
    assert "loaded in" in log, "the log is really there"
    assert secret not in log


@pytest.mark.parametrize(
    "model, asked",
    [
        ("embed", Request({"input_text": strings(*texts(5))})),
        ("embed", request(text_input="the cat", dimensions=8, return_num_input_tokens=True)),
        ("embed", Request({"text_input": strings("the cat")}, {"dimensions": 4}, ("embedding",))),
        ("rank", rows(text_input=texts(3))),
        ("rank", rows(text_input=texts(3), text_pair=texts(3, seed=2), top_k=[3, 1, 2])),
    ],
)
def test_an_ensemble_answers_as_the_single_model(
    triton: Triton, model: str, asked: Request
) -> None:
    found = HttpEndpoint(triton).infer(f"{model}_steps", asked)
    assert_same(found, HttpEndpoint(triton).infer(model, asked))


@pytest.mark.parametrize(
    "asked",
    [request(text_input=LONG), request(text_input="a", dimensions=99)],
    ids=["too long", "too many dimensions"],
)
def test_a_bad_request_is_refused_by_an_ensemble_in_the_single_models_words(
    triton: Triton, asked: Request
) -> None:
    expected, got = (HttpEndpoint(triton).infer(name, asked) for name in ("embed", "embed_steps"))
    assert (got.status, expected.status) == (400, 400)
    assert got.error == f"in ensemble 'embed_steps', {expected.error}"


def test_the_model_step_can_be_asked_alone(triton: Triton) -> None:
    """Rows of tokens, the tensors of exported models: for clients that tokenise themselves."""
    ids = np.array([[1, 5, 2], [1, 2, 0]])
    mask = (ids > 0).astype(np.int64)
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * mask}
    asked = Request(tensors, outputs=("output",))
    found = HttpEndpoint(triton).infer("rank_steps_model", asked)
    assert found.ok, found.error
    assert found.outputs["output"].shape == (2, 3)
    refused = HttpEndpoint(triton).infer(
        "rank_steps_model", Request({**tensors, "input_ids": ids + 10**6})
    )
    assert (refused.status, "input_ids: got 100000" in refused.error) == (400, True)
