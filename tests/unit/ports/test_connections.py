"""Which connection of a port goes where there are too many."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hf_triton.ports.port import Connections


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
def test_the_idle_connection_goes_whose_time_ends_first_as_it_is_now() -> None:
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
