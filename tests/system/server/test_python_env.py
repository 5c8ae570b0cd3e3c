"""``python_env:`` on a real server: a model in an environment of its own, beside others whose
environment is broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.served import serve
from tests.support.tiny_wheel import make_wheel

MODELS = """\
- {name: own, options: {needs: tiny}, python_env: ENV}
- {name: lacking, options: {needs: not_there}, python_env: ENV}
- {name: foreign, python_env: ./old}
- {name: failing, python_env: lost.txt}
- {name: base}
"""
ENV = "{requirements: needs.txt, system_site_packages: true}"


def make_files(folder: Path) -> None:
    make_wheel(folder / "wheels", "tiny", "1.5")
    (folder / "needs.txt").write_text("--no-index\n--find-links wheels\ntiny\n")
    (folder / "lost.txt").write_text("--no-index\nlost-package\n")
    python = folder / "old" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho \'{"python": [3, 8], "versions": {"numpy": null}}\'\n')
    python.chmod(0o755)
    (python.parent / "python").symlink_to("python3")


def test_a_model_runs_in_its_environment_and_broken_ones_fail_alone(tmp_path: Path) -> None:
    make_files(tmp_path)
    environment = {"HF_TRITON_PYTHON_ENVS": str(tmp_path / "envs")}
    models = MODELS.replace("ENV", ENV)
    with serve(tmp_path, models, environment=environment) as served:
        for news in (": built in ", "failing: python_env: ", "Ctrl-C stops"):
            served.wait_for(news)
        assert "serving 2 of 5 models" in served.err
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        for name, reason in {
            "lacking": "python_env: needs.txt: lacks not_there, which this model needs: add that",
            "foreign": f"old is of Python 3.8, and the server's is {here}",
            "failing": "the environment of lost.txt could not be built on this machine: ",
        }.items():
            told = [line for line in served.err.splitlines() if f"model '{name}' failed" in line]
            assert len(told) == 1
            assert reason in told[0]
        served.wait_for(f"tiny 1.5 of {tmp_path / 'envs'}")
        assert served.generate("own", "hello").body["text_output"] == "hello"
        assert served.generate("base", "hello").body["text_output"] == "hello"
