"""examples/every-task.yaml on one real server: each task answers the curl line that is printed.
Ensembles of encoders answer as single models do, and what is asked is counted.
"""

from __future__ import annotations

import base64
import io
import json
import math
import shlex
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from wire import Reply, Request, strings

from generator.render.sample_requests import curl_lines
from tests.scenarios.metrics import settled
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.served_encoder import request, tensor
from tests.support.tiny_encoders import texts
from tests.support.triton import ROOT, Triton, eventually, post, post_for_events, serving

Outputs = Mapping[str, Any]
STEPS = """
  - {name: embedding_steps, task: feature-extraction, model: ../demo/embedding, layout: ensemble}
  - {name: classifier_steps, task: text-classification, model: ../demo/classifier, layout: ensemble}
"""
LONG = " ".join(texts(6_500, longest=60))  # a megabyte


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("every_task")


@pytest.fixture(scope="module")
def triton(folder: Path) -> Iterator[Triton]:
    text = (ROOT / "examples/every-task.yaml").read_text(encoding="utf-8") + STEPS
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(text.replace("../demo", str(ROOT / "demo")), folder, 600.0) as running:
            yield running


def by_name(answer: Any) -> Outputs:
    """The outputs of /infer in the form that /generate answers in."""
    found = {output["name"]: output["data"] for output in answer["outputs"]}
    return {name: data[0] if len(data) == 1 else data for name, data in found.items()}


def finds_a_person_and_a_place(outputs: Outputs) -> bool:
    text = "My name is Anna Brown and I live in Paris."
    found = json.loads(outputs["output"])
    names = [(each["entity_group"], text[each["start"] : each["end"]]) for each in found]
    return names == [("PER", "Anna Brown"), ("LOC", "Paris")]


def is_about_sport(outputs: Outputs) -> bool:
    same = outputs["label"] == json.loads(outputs["output"])["labels"]
    return bool(same and outputs["label"][0] == "sport" and outputs["score"][0] > 0.8)


def has_length_one(outputs: Outputs) -> bool:
    vector = outputs["embedding"]
    return len(vector) == 64 and math.isclose(math.hypot(*vector), 1, abs_tol=1e-4)


def says(*words: str) -> Callable[[Outputs], bool]:
    """Checks the text; without words any will do."""
    return lambda outputs: outputs["text_output"].strip() in (words or outputs["text_output"])


def is_red(outputs: Outputs) -> bool:
    return bool(json.loads(outputs["output"])[0]["label"] == "red")


CHECKS: dict[str, Callable[[Outputs], bool]] = {
    "text": lambda outputs: len(outputs["text_output"].split()) > 5,
    "embedding": has_length_one,
    "classifier": lambda outputs: outputs["label"] == "POSITIVE" and outputs["score"] > 0.9,
    "zero-shot": is_about_sport,
    "entities": finds_a_person_and_a_place,
    "answers": lambda outputs: (
        {"answer": "Paris", "start": 14, "end": 19}.items() <= json.loads(outputs["output"]).items()
    ),
    "mask": lambda outputs: (
        json.loads(outputs["output"])[0]["token_str"] in {"tea", "coffee", "milk", "water"}
    ),
    "translate": says("Der kleine Hund schläft im Garten."),
    "image": is_red,
    "see": says("it is red."),
    "hear": says(),  # of silence, whatever it says
    "speech": says(),
}


@pytest.mark.parametrize("model", CHECKS)
def test_the_printed_curl_lines_work_and_the_answers_are_right(
    triton: Triton, folder: Path, model: str
) -> None:
    base = triton.url(model, "").rsplit("/", 2)[0]
    lines = [shlex.split(line) for line in curl_lines(folder / "model_repository", model, base)]
    for _, url, _, data in lines[:2]:
        answer = post(url, data.encode())
        assert answer.status == 200, answer.body
        outputs = by_name(answer.body) if url.endswith("/infer") else answer.body
        assert CHECKS[model](outputs), outputs


@pytest.mark.parametrize("model", ["text", "translate", "see"])
def test_a_model_that_streams_answers_its_third_line_piece_by_piece(
    triton: Triton, folder: Path, model: str
) -> None:
    base = triton.url(model, "").rsplit("/", 2)[0]
    line = curl_lines(folder / "model_repository", model, base)[2]
    _, _, url, _, data = shlex.split(line)
    status, events = post_for_events(url, json.loads(data))
    assert status == 200
    # The four tokens of what is seen may be computed before the first is sent.
    assert len(events) > (0 if model == "see" else 1)
    assert CHECKS[model]({"text_output": "".join(event["text_output"] for event in events)})


def binary(url: str, content: bytes) -> Any:
    """Sends ``content`` as Triton's binary tensor data: a length before it, no base64."""
    data = len(content).to_bytes(4, "little") + content
    size = {"binary_data_size": len(data)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": size}
    header = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(url, header + data)
    request.add_header("Inference-Header-Content-Length", str(len(header)))
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_a_pipelines_image_comes_as_it_is_and_in_hugging_faces_form_and_is_never_fetched(
    triton: Triton,
) -> None:
    name = "hf_triton_finished_total"
    before = triton.metric(name, model="image", finish_reason="stop")
    red = png_of_red()
    assert is_red(by_name(binary(triton.url("image", "infer"), red)))
    text = base64.b64encode(red).decode()
    answer = triton.generate("image", inputs=text, parameters={"top_k": 2})
    assert (answer.status, is_red(answer.body)) == (200, True)
    assert len(json.loads(answer.body["output"])) == 2
    assert eventually(lambda: triton.metric(name, model="image", finish_reason="stop") > before + 1)
    tensor: dict[str, object] = {"name": "image", "datatype": "BYTES", "shape": [1]}
    refused = triton.infer("image", {**tensor, "data": [triton.metrics_url]})
    assert refused.status == 400
    assert "paths and addresses are not opened" in refused.body["error"]


def test_a_spoken_number_is_heard_and_transcribed(triton: Triton) -> None:
    sound = base64.b64encode((ROOT / "demo/numbers.wav").read_bytes()).decode()
    asked = {"text_input": "What do you hear?", "audio": sound}
    heard = post(triton.url("hear", "generate"), asked)
    assert heard.body["text_output"].strip() == "seven three one."
    asked = {"audio": sound, "return_timestamps": "segments"}
    said = post(triton.url("speech", "generate"), asked)
    assert said.body["text_output"].strip() == "seven three one"
    [segment] = json.loads(said.body["segments"])
    assert 0 <= segment["start"] < 0.4 < 1 < segment["end"] < 3


def png_of_red() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (50, 40), (215, 25, 25)).save(file, "PNG")
    return file.getvalue()


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
        else:
            assert array.tolist() == other.outputs[name].tolist()


@pytest.mark.threat("texts-in-logs")
def test_no_text_of_a_caller_reaches_the_servers_log(triton: Triton) -> None:
    secret = "SecretThatNobodyMaySee"
    for value in (secret, secret * 200, secret.encode() + b"\xff"):
        GrpcEndpoint(triton).infer("embedding", request(text_input=value))
        GrpcEndpoint(triton).infer("answers", request(question="who", context=value))
        GrpcEndpoint(triton).infer("classifier", request(text_input=value))
    log = "\n".join(triton.log)
    assert "loaded in" in log, "the log is really there"
    assert secret not in log


@pytest.mark.parametrize(
    "model, asked",
    [
        ("embedding", request(text_input="the cat", dimensions=8, return_num_input_tokens=True)),
        (
            "embedding",
            Request({"text_input": strings("the cat")}, {"dimensions": 4}, ("embedding",)),
        ),
        ("classifier", request(text_input="a cat", text_pair="a dog", top_k=1)),
    ],
)
def test_an_ensemble_answers_as_the_single_model(
    triton: Triton, model: str, asked: Request
) -> None:
    found = HttpEndpoint(triton).infer(f"{model}_steps", asked)
    assert_same(found, HttpEndpoint(triton).infer(model, asked))


def test_what_is_counted_adds_up(triton: Triton) -> None:
    assert eventually(lambda: triton.metric("hf_triton_open_requests", model="embedding") == 0)
    before = settled(lambda: counted(triton))
    good = [("embedding", request(text_input=text)) for text in texts(20)]
    bad = [("embedding", request(text_input=LONG))] * 5
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
        word: triton.metric("hf_triton_requests_total", model="embedding", outcome=word)
        for word in ("ok", "refused", "error")
    }
    tokens = triton.metric("hf_triton_input_tokens_total", model="embedding")
    inputs = triton.metric("hf_triton_step_inputs_sum", model="embedding")
    return {**outcomes, "tokens": tokens, "inputs": inputs}
