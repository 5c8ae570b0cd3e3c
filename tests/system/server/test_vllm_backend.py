"""``layout: vllm-backend`` on a real server, with a stand-in for NVIDIA's backend."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from generator.render.sample_requests import curl_lines
from hf_triton.cli.verbs.generate import generate
from hf_triton.tritonserver import binary
from hf_triton.tritonserver.process import TritonServer
from tests.support.triton import DEMO_MODEL, free_ports, post, post_for_events

STAND_IN = Path(__file__).parents[2] / "support" / "vllm_backend_model.py"
MODELS = """\
models:
  - name: llm
    task: text-generation
    model: ./weights
    layout: vllm-backend
"""


def backends_with_vllm(folder: Path) -> Path:
    """A backend directory with the Python backend as it is here, and the stand-in."""
    command = binary.find().command
    flag = "--backend-directory="
    found = [word.removeprefix(flag) for word in command if word.startswith(flag)]
    if not found:
        pytest.skip("this tritonserver's command line does not say where its backends are")
    shutil.copytree(Path(*found, "python"), folder / "python")  # Triton takes no links out of it
    (folder / "vllm").mkdir()
    shutil.copy(STAND_IN, folder / "vllm" / "model.py")
    return folder


def test_the_folder_loads_and_its_curl_lines_work(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(MODELS)
    shutil.copytree(DEMO_MODEL, tmp_path / "weights")
    repository = tmp_path / "model_repository"
    generate(tmp_path / "models.yaml", repository)
    backends = backends_with_vllm(tmp_path / "backends")
    arguments = [f"--backend-directory={backends}"]
    with TritonServer(repository, free_ports(), arguments=arguments) as server:
        server.wait_ready(["llm"])
        url = f"http://{server.listen.address(server.listen.http_port)}/v2/models"
        whole, streamed = map(shlex.split, curl_lines(repository, "llm", url))
        answer = post(whole[1], json.loads(whole[3]))
        assert (answer.status, answer.body["text_output"]) == (200, "I am going")
        events = post_for_events(streamed[2], json.loads(streamed[4]))[1]
        assert [event["text_output"] for event in events] == ["I", "am", "going"]
