"""Wheels unpacked beside links to what is installed, and wheels that can't be used."""

from __future__ import annotations

import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from perf.gpu.environment import WheelError, check_wheel, make, wheels_in

PYTHON = f"cp3{sys.version_info.minor}"
MACHINE = platform.machine()


def wheel(folder: Path, name: str, tag: str, files: dict[str, str] | None = None) -> Path:
    path = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        for file, text in (files or {}).items():
            archive.writestr(file, text)
    return path


@pytest.mark.parametrize(
    "tag",
    [
        "py3-none-any",
        f"{PYTHON}-{PYTHON}-manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}",
        f"cp38-abi3-manylinux1_{MACHINE}",
        "py2.py3-none-any",
    ],
)
def test_a_wheel_for_this_machine_is_taken(tag: str, tmp_path: Path) -> None:
    assert check_wheel(wheel(tmp_path, "Some_Thing", tag)) == "some-thing"


@pytest.mark.parametrize(
    "tag",
    [
        f"{PYTHON}-{PYTHON}-manylinux_2_99_{MACHINE}",
        f"cp32-cp32-manylinux_2_17_{MACHINE}",
        f"{PYTHON}-{PYTHON}-manylinux_2_17_sparc64",
        f"{PYTHON}-{PYTHON}-win_amd64",
    ],
)
def test_a_wheel_for_another_machine_is_told(tag: str, tmp_path: Path) -> None:
    path = wheel(tmp_path, "thing", tag)
    with pytest.raises(WheelError, match=f"is for {tag}; this is Python 3"):
        check_wheel(path)


def test_what_is_no_wheel_is_told(tmp_path: Path) -> None:
    text = tmp_path / "text.whl"
    text.write_text("no archive")
    with pytest.raises(WheelError, match=r"text\.whl is not a wheel: File is not a zip file"):
        check_wheel(text)
    with zipfile.ZipFile(tmp_path / "zip.whl", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(WheelError, match=r"not a wheel: no \.dist-info/WHEEL in it"):
        check_wheel(tmp_path / "zip.whl")
    with pytest.raises(WheelError, match=r"gone\.whl: no such file"):
        check_wheel(tmp_path / "gone.whl")
    with pytest.raises(WheelError, match=r"no such folder"):
        wheels_in(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(WheelError, match=r"no \*\.whl in it"):
        wheels_in(tmp_path / "empty")


def test_a_server_wheel_without_a_server_is_told(tmp_path: Path) -> None:
    path = wheel(tmp_path, "nvidia_pytriton", "py3-none-any")
    with pytest.raises(WheelError, match="has no pytriton/tritonserver/bin/tritonserver"):
        check_wheel(path)


def test_a_wheel_stands_before_what_is_installed_and_the_rest_is_linked(tmp_path: Path) -> None:
    files = {"tqdm/__init__.py": "HERE = 1\n", "tqdm-1.0.data/purelib/beside.py": "HERE = 2\n"}
    brought = wheel(tmp_path, "tqdm", "py3-none-any", files)
    python = make(tmp_path / "environment", [brought])
    code = "import tqdm, beside, numpy, yaml; print(tqdm.HERE, beside.HERE)"
    env = {"PATH": ""}
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, env=env)
    assert found.stdout == "1 2\n", found.stderr
    unseen = subprocess.run([python, "-c", "import pytest"], capture_output=True, env=env)
    assert unseen.returncode, "nobody asked for it"


def test_a_shared_library_goes_beside_the_servers(tmp_path: Path) -> None:
    library = tmp_path / "libpython.so"
    library.write_bytes(b"ELF")
    make(tmp_path / "environment", [], library)
    version = f"3.{sys.version_info.minor}"
    libraries = tmp_path / f"environment/lib/python{version}/site-packages/nvidia_pytriton.libs"
    assert (libraries / f"libpython{version}.so.1.0").read_bytes() == b"ELF"
    assert list(libraries.glob(f"libpython3-*.{sys.version_info.minor}.so*"))
    with pytest.raises(WheelError, match="no such file"):
        make(tmp_path / "other", [], tmp_path / "gone.so")
