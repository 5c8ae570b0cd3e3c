"""examples/every-task.yaml on one real server: each task answers the curl line that is printed."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import shlex
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from PIL import Image
from wire import Request, strings

from generator.render.curl_lines import curl_lines
from tests.scenarios.endpoint import Model
from tests.scenarios.triton_endpoints import GrpcEndpoint
from tests.support.triton import ROOT, Triton, eventually, post, post_for_events, serving

Outputs = Mapping[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("every_task")


@pytest.fixture(scope="module")
def triton(folder: Path) -> Iterator[Triton]:
    text = (ROOT / "examples/every-task.yaml").read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(text.replace("../demo", str(ROOT / "demo")), folder, 600.0) as running:
            yield running


def by_name(answer: Any) -> Outputs:
    """The outputs of /infer in the form that /generate answers in."""
    found = {output["name"]: output["data"] for output in answer["outputs"]}
    return {name: data[0] if len(data) == 1 else data for name, data in found.items()}


def is_english(outputs: Outputs) -> bool:
    return len(outputs["text_output"].split()) > 5


def has_length_one(outputs: Outputs) -> bool:
    vector = outputs["embedding"]
    return len(vector) == 64 and math.isclose(math.hypot(*vector), 1, abs_tol=1e-4)


def likes_it(outputs: Outputs) -> bool:
    return bool(outputs["label"] == "POSITIVE" and outputs["score"] > 0.9)


def is_about_sport(outputs: Outputs) -> bool:
    found = json.loads(outputs["output"])
    same = outputs["label"] == found["labels"] and outputs["label"][0] == "sport"
    return bool(same and outputs["score"][0] > 0.8)


def finds_a_person_and_a_place(outputs: Outputs) -> bool:
    text = "My name is Anna Brown and I live in Paris."
    found = json.loads(outputs["output"])
    names = [(each["entity_group"], text[each["start"] : each["end"]]) for each in found]
    return names == [("PER", "Anna Brown"), ("LOC", "Paris")]


def finds_where_anna_lives(outputs: Outputs) -> bool:
    found = json.loads(outputs["output"])
    return (found["answer"], found["start"], found["end"]) == ("Paris", 14, 19)


def is_a_drink(outputs: Outputs) -> bool:
    best = json.loads(outputs["output"])[0]
    return best["token_str"] in {"tea", "coffee", "milk", "water"}


def is_german(outputs: Outputs) -> bool:
    return bool(outputs["text_output"] == "Der kleine Hund schläft im Garten.")


def is_red(outputs: Outputs) -> bool:
    return bool(json.loads(outputs["output"])[0]["label"] == "red")


def is_text(outputs: Outputs) -> bool:
    return isinstance(outputs["text_output"], str)


def says_red(outputs: Outputs) -> bool:
    return bool(outputs["text_output"].strip() == "it is red.")


CHECKS: dict[str, Callable[[Outputs], bool]] = {
    "text": is_english,
    "embedding": has_length_one,
    "classifier": likes_it,
    "zero-shot": is_about_sport,
    "entities": finds_a_person_and_a_place,
    "answers": finds_where_anna_lives,
    "mask": is_a_drink,
    "translate": is_german,
    "image": is_red,
    "see": says_red,
    "hear": is_text,  # of silence, whatever it says
    "speech": is_text,
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


def test_an_image_goes_as_it_is_over_grpc_and_a_bad_one_is_named(triton: Triton) -> None:
    red = png_of_red()
    model = Model(GrpcEndpoint(triton), "see", batched=False)
    text = strings("What colour is it?")
    files = (red, red[:60], red)
    asked = [Request({"text_input": text, "image": strings(file)}) for file in files]
    found = model.infer_together(asked)
    assert [reply.status for reply in found] == [200, 400, 200]
    assert "image[0]: " in str(found[1].error)
    assert says_red({"text_output": found[0].text()})
    assert says_red({"text_output": found[2].text()})


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


def test_tritons_classification_extension_names_the_labels(triton: Triton) -> None:
    text = np.array([b"I love this film."], np.object_)
    for kind, url in ((tritonclient.http, triton.http), (tritonclient.grpc, triton.grpc)):
        asked = kind.InferInput("text_input", [1], "BYTES")
        asked.set_data_from_numpy(text)
        logits = kind.InferRequestedOutput("logits", class_count=3)
        with contextlib.closing(kind.InferenceServerClient(url)) as client:
            found = client.infer("classifier", [asked], outputs=[logits]).as_numpy("logits")
        assert [each.split(b":")[1:] for each in found] == [
            [b"1", b"POSITIVE"],
            [b"0", b"NEGATIVE"],
        ]
