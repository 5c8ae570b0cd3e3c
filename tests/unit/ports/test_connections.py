"""A port with too many connections closes the right one."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_triton.ports.port import Connections, Port, Shared
from hf_triton.ports.refusal import RefusedError, refusal_of


@dataclass(eq=False)
class Client:
    deadline: float
    is_idle: bool = True
    is_open: bool = True

    def abort(self) -> None:
        self.is_open = False

    def time_out(self, now: float) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.threat("slow-http-clients", "slow-openai-clients")
def test_the_idle_connection_goes_whose_time_ends_first() -> None:
    connections = Connections(4)
    busy, later, first, second = [Client(0, is_idle=False), *map(Client, (9, 1, 2))]
    for client in (busy, later, first, second, Client(99)):
        connections.add(client)
    assert [one.is_open for one in (busy, later, first, second)] == [True, True, False, True]
    second.deadline = 100  # it has asked meanwhile
    connections.add(Client(99))
    assert [one.is_open for one in (busy, later, second)] == [True, False, True]
    assert len(connections) == 4


def test_a_client_is_turned_away_where_all_others_are_busy() -> None:
    connections = Connections(1)
    busy, late = Client(0, is_idle=False), Client(9)
    for client in (busy, late):
        connections.add(client)
    assert (busy.is_open, late.is_open) == (True, False)
    assert set(connections) == {busy}


def test_a_process_without_descriptors_left_tells_the_client_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", read)
    with pytest.raises(OSError, match="Too many open files") as caught:
        Port(Shared()).check_classified("a", ["y"])
    refusal = refusal_of(caught.value)
    assert (refusal.status, refusal.headers) == (503, {"Retry-After": "1"})
    assert refusal.text == "the server lacks a resource (Too many open files): try again later"


@pytest.mark.parametrize("name", ["../other", "a/../../other", "/other", "{tmp_path}/other", ".."])
def test_a_name_that_is_a_path_reads_no_config_beside_the_repository(
    tmp_path: Path, name: str
) -> None:
    for folder in (tmp_path, tmp_path / "other", tmp_path / "repository" / "a"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text('output {name: "y" data_type: TYPE_FP32}')
    port = Port(Shared(repository=tmp_path / "repository"))
    with pytest.raises(RefusedError, match="'y' that the model does not have"):
        port.check_classified(name.format(tmp_path=tmp_path), ["y"])
