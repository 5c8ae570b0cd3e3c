"""The real clients, each as PyPI has it, in an environment of its own: opt-in, see conftest.py.

``make test ARGS="-m clients"`` installs about 1.5 GB at first. Pins are what was last seen to work;
only the client itself is pinned, so that its dependencies are what a user would get today.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.installed import drive, environment_with, run_in
from tests.clients.perf_analyzer import environment_of
from tests.clients.test_litellm_embeddings import TEXTS, embed_as_litellm
from tests.scenarios.reference import Reference
from tests.support.triton import DEMO_MODEL, Triton

pytestmark = [pytest.mark.server, pytest.mark.clients]

PROMPT = "How can you be"
SCRIPTS = Path(__file__).parent


@pytest.fixture(scope="session")
def environments(pytestconfig: pytest.Config) -> Path:
    """Where the environments are kept."""
    named = os.environ.get("HF_TRITON_CLIENTS_DIR")
    return Path(named).resolve() if named else pytestconfig.cache.mkdir("clients")


def texts_of(printed: str) -> Any:
    """The JSON of the last line: libraries print their own before."""
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("model", ["demo", "demo_stream", "batched", "batched_stream"])
def test_litellm(triton: Triton, reference: Reference, environments: Path, model: str) -> None:
    # 1.101 and later want a certifi that PyPI did not have yet.
    programs = environment_with(environments, "litellm==1.100.4")
    script = SCRIPTS / "drive_litellm.py"
    arguments = (f"http://{triton.http}", model, "12")
    done = drive(programs, script, *arguments, LITELLM_LOCAL_MODEL_COST_MAP="True")

    texts = texts_of(done.stdout)
    expected = reference.text(PROMPT, 12)
    for way, text in texts.items():
        assert (text if isinstance(text, str) else "".join(text)) == expected, way
    if model.endswith("_stream"):
        assert len([piece for piece in texts["stream"] if piece]) > 1


def test_litellm_embeddings(triton: Triton, environments: Path) -> None:
    programs = environment_with(environments, "litellm==1.100.4")
    script = SCRIPTS / "drive_litellm_embeddings.py"
    url = triton.url("embedding", "infer")
    done = drive(programs, script, url, LITELLM_LOCAL_MODEL_COST_MAP="True")

    expected = embed_as_litellm(url, TEXTS[:2])
    np.testing.assert_allclose(texts_of(done.stdout), expected, atol=1e-6)


def test_llama_index(triton: Triton, reference: Reference, environments: Path) -> None:
    programs = environment_with(environments, "llama-index-llms-nvidia-triton==0.6.0")
    script = SCRIPTS / "drive_llama_index.py"
    # It drops the response number max_tokens: ask for more than the answer has.
    text = reference.text(PROMPT, 64)
    assert reference.answer(PROMPT, 64).finish_reason == "stop"

    texts = texts_of(drive(programs, script, triton.grpc, "batched_stream", "64").stdout)

    assert texts["complete"] == text
    assert "".join(texts["stream_complete"]) == text
    assert len(texts["stream_complete"]) > 1
    assert texts["chat"]  # of "user: How can you be\nassistant: ", its own template


@pytest.mark.parametrize("version", ["2.73.0"])
def test_newest_tritonclient(
    triton: Triton, reference: Reference, environments: Path, version: str
) -> None:
    programs = environment_with(environments, f"tritonclient[grpc,http]=={version}")
    script = SCRIPTS / "drive_tritonclient.py"

    texts = texts_of(drive(programs, script, triton.http, triton.grpc, "12").stdout)

    assert {"".join(text) for text in texts.values()} == {reference.text(PROMPT, 12)}
    assert len(texts["grpc stream"]) > 1


@pytest.mark.parametrize("model", ["demo_stream", "batched_stream"])
@pytest.mark.parametrize("streaming", [False, True])
def test_genai_perf(
    triton: Triton, environments: Path, tmp_path: Path, model: str, streaming: bool
) -> None:
    programs = environment_with(environments, "genai-perf==0.0.8")
    arguments = (
        *("profile", "-m", model, "--service-kind", "triton", "--backend", "vllm"),
        *("-u", triton.grpc, "--tokenizer", str(DEMO_MODEL)),
        *("--num-prompts", "5", "--synthetic-input-tokens-mean", "10"),
        *("--output-tokens-mean", "12", "--output-tokens-mean-deterministic"),
        *("--concurrency", "2", "--artifact-dir", str(tmp_path / "artifacts")),
        *(["--streaming"] if streaming else []),
        *("--", "--request-count", "6"),
    )

    run_in(programs, "genai-perf", *arguments, **environment_of(tmp_path))

    export = tmp_path / "artifacts" / "profile_export_genai_perf.json"
    statistics = json.loads(export.read_text())
    assert statistics["request_throughput"]["avg"] > 0
    # It counts tokens again in the text, which may split in another way.
    assert statistics["output_sequence_length"]["avg"] == pytest.approx(12, abs=1.5)
    assert ("inter_token_latency" in statistics) is streaming
