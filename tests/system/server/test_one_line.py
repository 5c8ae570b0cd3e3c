"""One line for one model: ``hf-triton serve FOLDER``, on the real server, and what it keeps."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from generator.python_modules import run_module
from tests.support.triton import DEMO_MODEL, free_ports, post


def test_a_folder_is_served_without_a_file_and_then_kept_in_one(tmp_path: Path) -> None:
    pytest.importorskip("pytriton", reason="needs the embedded server")
    listen = free_ports()
    ports = (
        *("--http-port", str(listen.http_port), "--grpc-port", str(listen.grpc_port)),
        *("--metrics-port", str(listen.metrics_port), "--health-port", "0"),
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def served(*arguments: str) -> str:
        """Serves, asks the model and stops; returns what was said."""
        with subprocess.Popen(
            run_module("hf_triton.cli", "serve", *arguments, *ports, "--", "--log-info=1"),
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            said = []
            for line in process.stderr or ():
                said.append(line)
                if "serving 1 of 1 model" in line:
                    url = f"http://127.0.0.1:{listen.http_port}/v2/models/demo/generate"
                    answer = post(url, {"text_input": "I am going", "max_tokens": 4})
                    assert answer.status == 200, answer
                    process.send_signal(signal.SIGTERM)
        assert process.returncode == 0, said
        return "".join(said)

    model = str(DEMO_MODEL)
    said = served(model, "--name", "demo")
    kept = tmp_path / "cache/hf-triton/serve"
    assert f"{kept}/model-" in said
    assert "'demo' is text-generation, by its files (LlamaForCausalLM)\n" in said
    assert [one.name for one in tmp_path.iterdir()] == ["cache"]

    said = served(model, "--name", "demo", "--save")
    assert "hf-triton: added models.yaml:4: 'demo' is text-generation" in said
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *("cache", "model_repository", "models.yaml")
    ]
    for verb in ("validate", "diff"):
        subprocess.run(run_module("hf_triton.cli", verb), cwd=tmp_path, check=True)
