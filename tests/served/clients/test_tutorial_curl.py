"""The curl lines of NVIDIA's tutorial "Deploying Hugging Face Transformer Models in Triton".

curl's ``-d`` says ``application/x-www-form-urlencoded``, and so does urllib for bytes.
"""

from __future__ import annotations

import pytest

from tests.scenarios.reference import Reference
from tests.support.triton import Triton, post

INFER = (
    b'{"inputs": [{"name":"text_input","datatype":"BYTES","shape":[1],"data":["I am going"]}]}',
    b'{"inputs": [{"name":"text_input","datatype":"BYTES","shape":[1],"data":["How can you be"]}]}',
)
GENERATE = b'{"text_input":"How can you be"}'
DEFAULT_MAX_TOKENS = 128


@pytest.mark.parametrize("body", INFER)
def test_infer_answers_one_text(triton: Triton, reference: Reference, body: bytes) -> None:
    answer = post(triton.url("demo", "infer"), body)

    prompt = body.decode().split('"data":["')[1].split('"')[0]
    assert answer.status == 200, answer.body
    assert answer.body["model_name"] == "demo"
    assert answer.body["outputs"] == [
        {
            "name": "text_output",
            "datatype": "BYTES",
            "shape": [1],
            "data": [reference.text(prompt, DEFAULT_MAX_TOKENS)],
        }
    ]


@pytest.mark.parametrize("model", ["demo", "batched", "demo_stream", "batched_stream"])
def test_generate_answers_one_text(triton: Triton, reference: Reference, model: str) -> None:
    answer = post(triton.url(model, "generate"), GENERATE)

    assert answer.status == 200, answer.body
    assert answer.body == {
        "model_name": model,
        "model_version": "1",
        "text_output": reference.text("How can you be", DEFAULT_MAX_TOKENS),
    }
