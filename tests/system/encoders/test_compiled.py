"""Encoders compiled by torch: right, for any shape without compiling again, or refused."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hf_triton.encoder.compiled.runner import compiled_runner
from hf_triton.encoder.runners.runner import (
    Runner,
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
)
from hf_triton.runtime.errors import LoadError
from tests.support.encoder_setups import setup_of
from tests.support.tiny_encoders import Wrapping, tiny_encoder

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler"
)


def small_setup(folder: Path) -> RunnerSetup:
    return setup_of(tiny_encoder("bert", "AutoModel", folder, num_hidden_layers=1))


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


@needs_compiler
def test_every_shape_is_computed_as_the_model_does_without_compiling_again(tmp_path: Path) -> None:
    setup = small_setup(tmp_path)
    encodings = random_encodings(setup, (5, 17, 9, 17, 3, 60, 1, 100))
    expected = [reference_forward(setup, one) for one in encodings]
    runner: Runner = compiled_runner(setup)
    assert runner.name == "torch.compile, batches cut by length"
    with torch.compiler.set_stance("fail_on_recompile"):
        assert largest_difference(runner.forward(encodings), expected) < 1e-4
        for lengths in ((7,), (1,), (20, 20, 20), (128,), (3, 3, 3, 3, 3, 90, 80, 82)):
            runner.forward(random_encodings(setup, lengths))


class OtherWhenCompiled(Wrapping):
    """A model that a compiler would get wrong."""

    def changed(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 0.25 if torch.compiler.is_compiling() else hidden


@needs_compiler
def test_a_compiled_model_that_disagrees_is_refused(tmp_path: Path) -> None:
    setup = small_setup(tmp_path)
    setup = dataclasses.replace(setup, model=OtherWhenCompiled(setup.model).eval())
    with pytest.raises(LoadError, match=r"^engine: torch-compile can't .* by 0\.\d+, allowed is"):
        compiled_runner(setup)


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(LoadError) as caught:
        compiled_runner(small_setup(tmp_path))
    assert str(caught.value) == (
        "engine: torch-compile needs a C++ compiler on a CPU, and there is no no-such-compiler: "
        "install one (Debian: apt-get install g++), or use engine: torch"
    )


@needs_compiler
def test_a_compiler_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, str(broken)))
    monkeypatch.setattr("torch._inductor.config.force_disable_caches", True)
    with pytest.raises(LoadError) as caught:
        compiled_runner(small_setup(tmp_path / "model"))
    assert str(caught.value).startswith(
        "engine: torch-compile can't serve it: torch.compile failed: "
    )
    assert str(caught.value).endswith("; use engine: torch")
    assert "\n" not in str(caught.value)


@needs_compiler
def test_tritons_c_locale_does_not_keep_torch_from_reading_its_templates() -> None:
    code = (
        "import locale, hf_triton.encoder.compiled.runner as module\n"
        "before = locale.getpreferredencoding(False)\n"
        "module._read_as_utf8()\n"
        "import torch._inductor.select_algorithm\n"
        "print(before, locale.getpreferredencoding(False))\n"
    )
    # As an embedded Python starts: without the interpreter's own remedies.
    changes = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    root = str(Path(__file__).parents[3])
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **changes, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["ANSI_X3.4-1968", "UTF-8"], result.stderr
