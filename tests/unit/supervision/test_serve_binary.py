"""Finds tritonserver, or says how to install it."""

from __future__ import annotations

import stat
import sys
from importlib import metadata
from pathlib import Path

import pytest

from generator.errors import ServerError
from hf_triton.tritonserver import binary as server_binary
from hf_triton.tritonserver.listen import Listen


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel's layout, for the running Python, without its contents."""
    home = tmp_path / "site-packages" / "pytriton" / "tritonserver"
    version = f"3.{sys.version_info.minor}"
    for file in (
        "bin/tritonserver",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_utils.py",
        f"python_backend_stubs/{version}/triton_python_backend_stub",
    ):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    (home.parent.parent / "nvidia_pytriton.libs").mkdir()
    info = home.parent.parent / "nvidia_pytriton-0.7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: nvidia-pytriton\nVersion: 0.7.0\n")
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(info))
    monkeypatch.setattr(server_binary, "libpython_folder", lambda libraries: ["/lib/python"])
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return home


def backends(binary: server_binary.Binary) -> Path:
    flag = "--backend-directory="
    return Path(next(part.removeprefix(flag) for part in binary.command if flag in part))


def test_the_wheel_is_used_where_path_has_none(wheel: Path) -> None:
    binary = server_binary.find()
    assert binary.command[0] == str(wheel / "bin" / "tritonserver")
    assert binary.environment["LD_LIBRARY_PATH"].startswith("/lib/python:")
    assert binary.full_environment()["PYTHONUTF8"] == "1"
    assert binary.environment["PATH"].startswith(str(Path(sys.executable).parent))


def test_the_backend_folder_is_complete_and_kept_between_runs(wheel: Path) -> None:
    folder = backends(server_binary.find())
    assert {path.name for path in (folder / "python").iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_utils.py",
        "triton_python_backend_stub",
    }
    (folder / "python" / "libtriton_python.so").unlink()
    (folder / "python" / "libtriton_python.so").symlink_to("/somewhere/else")
    assert backends(server_binary.find()) == folder
    linked = (folder / "python" / "libtriton_python.so").resolve()
    assert linked == wheel / "backends" / "python" / "libtriton_python.so"


@pytest.mark.threat("no-home")
def test_a_cache_that_cannot_be_written_is_done_without(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = backends(server_binary.find())
    assert (folder / "python" / "triton_python_backend_stub").exists()
    assert folder.parent.parent == tmp_path
    before = set(tmp_path.iterdir())
    (tmp_path / "goes with the server").mkdir()
    folder = backends(server_binary.find(str(tmp_path / "goes with the server")))
    assert (folder / "python" / "triton_python_backend_stub").exists()
    assert set(tmp_path.iterdir()) - before == {folder.parent}


@pytest.mark.threat("stub-cache")
def test_a_cache_that_others_can_write_is_not_used(wheel: Path, tmp_path: Path) -> None:
    """They could put another program in the place of the stub."""
    folder = backends(server_binary.find(str(tmp_path)))
    folder.parent.chmod(0o777)
    scratch = tmp_path / "scratch"
    assert backends(server_binary.find(str(scratch))) == scratch / "backends"


def test_a_tritonserver_on_path_comes_first(wheel: Path, tmp_path: Path) -> None:
    server = tmp_path / "empty" / "tritonserver"
    server.parent.mkdir()
    server.touch(mode=0o755)
    binary = server_binary.find()
    assert binary.command == (str(server),)
    assert "LD_LIBRARY_PATH" not in binary.environment


def test_neither_is_one_clear_error(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ServerError, match=r"none on PATH, and .* pip install 'PATH\[serve\]'"):
        server_binary.find()


def test_a_python_without_a_stub_is_told_which_have_one(wheel: Path) -> None:
    stubs = wheel / "python_backend_stubs"
    (stubs / f"3.{sys.version_info.minor}").rename(stubs / "3.8")
    with pytest.raises(ServerError, match=r"can't serve models on Python 3\.\d+; it can on 3\.8"):
        server_binary.find()


def test_two_equal_ports_are_refused() -> None:
    with pytest.raises(ServerError, match="--http-port and --metrics-port are both 8000"):
        Listen(http_port=8000, grpc_port=8001, metrics_port=8000).check()


@pytest.mark.parametrize(
    "host, message",
    [("192.0.2.1", "is not an address of this machine"), ("no..such", "see --host")],
)
def test_a_wrong_host_is_refused(host: str, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        Listen(host=host).check()


def test_a_server_on_every_address_is_reached_on_the_loopback() -> None:
    assert Listen(host="0.0.0.0").address(8000) == "127.0.0.1:8000"
    assert Listen(host="::").address(8000) == "[::1]:8000"


def test_a_folder_of_sockets_that_was_cleared_away_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    Listen(sockets=str(folder)).check_triton()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    Listen(sockets=str(folder)).check_triton()


def test_a_folder_of_sockets_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o755)
    with pytest.raises(ServerError, match="is open to other users"):
        Listen(sockets=str(folder)).check_triton()
