"""Callers, their keys and limits, and connections, without a port."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from generator.errors import ServerError
from generator.models_yaml.server_settings import Limits
from hf_triton.ports import api_keys
from hf_triton.ports import callers as callers_module
from hf_triton.ports.callers import Account, Callers, CallName, counted
from hf_triton.ports.port import Connections, Port, Shared
from hf_triton.ports.refusal import RefusedError, refusal_of
from hf_triton.ports.settings import EVERYBODY, Access, Caller
from hf_triton.runtime.request.request_parameters import (
    CALL,
    USES_VARIABLE,
    VARIABLE,
    Call,
    call_in,
    call_text,
)

ALICE, BOB = "alice-key-1234567", "bob-key-123456789"
KEYS = (Caller("alice", ALICE), Caller("bob", BOB, Limits(concurrent_requests=1)))


class Clock:
    """Seconds that pass when they are told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def refused(callers: Callers, header: bytes | None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        callers.of(header, "1.2.3.4")
    return caught.value


def test_a_key_is_a_bearer_token_whatever_the_case_of_the_scheme() -> None:
    callers = Callers(Access(callers=KEYS))
    account = callers.of(f"bEARER  {ALICE} ".encode(), "1.2.3.4")
    assert account is callers.of(f"Bearer {ALICE}".encode(), "5.6.7.8")
    assert account
    assert account.alias == KEYS[0].alias


@pytest.mark.threat("no-key")
@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Basic " + ALICE.encode(), ALICE.encode(), b"\xff"],
)
def test_what_is_no_key_is_refused_unquoted(header: bytes | None) -> None:
    error = refused(Callers(Access(callers=KEYS)), header)
    assert error.status == 401
    assert error.headers == {"WWW-Authenticate": "Bearer"}
    assert ALICE not in error.text


@pytest.mark.threat("no-key")
@pytest.mark.parametrize("sent", [ALICE, BOB, "wrong", "s" * 999])
def test_a_token_is_hashed_once_and_compared_with_no_key(
    sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []

    def digest(_secret: bytes, token: bytes, _name: str) -> bytes:
        hashed.append(token)
        return token[::-1]

    monkeypatch.setattr(callers_module, "hmac", types.SimpleNamespace(digest=digest))
    callers = Callers(Access(callers=KEYS))
    hashed.clear()
    if sent in (ALICE, BOB):
        assert callers.of(f"Bearer {sent}".encode(), "")
    else:
        assert refused(callers, f"Bearer {sent}".encode()).status == 401
    assert hashed == [sent.encode()]


@pytest.mark.threat("caller-limits")
def test_requests_at_once_are_counted_by_key() -> None:
    callers = Callers(Access(callers=KEYS))
    bob = callers.of(f"Bearer {BOB}".encode(), "")
    assert bob
    bob.enter()
    with pytest.raises(RefusedError, match="more than 1 requests at once"):
        bob.enter()
    for _ in range(100):
        alice = callers.of(f"Bearer {ALICE}".encode(), "")
        assert alice
        alice.enter()
    bob.leave()
    bob.enter()


@pytest.mark.threat("caller-limits")
@pytest.mark.parametrize(
    "one, other, is_same",
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::7", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        ("::ffff:1.2.3.4", "::ffff:1.2.3.5", False),
        ("1.2.3.4", "1.2.3.5", False),
        ("", "", True),
    ],
)
def test_all_addresses_of_a_network_of_ipv6_are_one_caller(
    one: str, other: str, is_same: bool
) -> None:
    callers = Callers(Access(limits=Limits(concurrent_requests=1)))
    assert (callers.of(None, one) is callers.of(None, other)) == is_same


@pytest.mark.threat("caller-limits")
def test_requests_in_a_minute_come_back_as_time_goes() -> None:
    clock = Clock()
    callers = Callers(Access(limits=Limits(requests_per_minute=60)), clock)
    account, other = (callers.of(None, one) for one in ("1.2.3.4", "5.6.7.8"))
    assert account
    assert other
    for _ in range(60):
        account.enter()
    with pytest.raises(RefusedError) as caught:
        account.enter()
    assert caught.value.status == 429
    assert caught.value.headers == {"Retry-After": "1"}
    other.enter()
    clock.now_s += 2
    account.enter()
    account.enter()
    with pytest.raises(RefusedError):
        account.enter()


@pytest.mark.threat("caller-limits")
def test_more_tokens_than_are_left_are_paid_back_as_time_goes() -> None:
    clock = Clock()
    account = Callers(Access(limits=Limits(tokens_per_minute=600)), clock).of(None, "1.2.3.4")
    assert account
    account.enter()
    assert rate_of(account) == {"limit": "600", "remaining": "600", "reset": "0.000s"}
    account.use({"prompt_tokens": 500, "generated_tokens": 0.0, "images": 2})
    assert rate_of(account) == {"limit": "600", "remaining": "100", "reset": "50.000s"}
    account.enter()
    account.use({"prompt_tokens": 0, "generated_tokens": 130})
    with pytest.raises(RefusedError, match="more than 600 tokens in a minute") as caught:
        account.enter()
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "4"})
    assert rate_of(account) == {"limit": "600", "remaining": "0", "reset": "63.000s"}
    clock.now_s += 4
    account.enter()
    assert rate_of(account)["remaining"] == "10"


def rate_of(account: Account) -> dict[str, str]:
    """What an answer's headers say of tokens."""
    begin, end = "x-ratelimit-", "-tokens"
    assert all(name.startswith(begin) and name.endswith(end) for name in account.headers())
    return {n.removeprefix(begin).removesuffix(end): v for n, v in account.headers().items()}


async def test_what_a_model_tells_of_a_call_is_counted_to_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/left_")
    monkeypatch.setenv(USES_VARIABLE, f"{tmp_path}/uses")
    callers = Callers(Access(callers=KEYS))

    def called(name: str) -> Call:
        found = call_in(json.dumps({CALL: call_text(name, 0, 0.0, "")}))
        assert found
        return found

    with (
        callers.followed(f"{tmp_path}/uses"),
        counted(callers.of(f"Bearer {ALICE}".encode(), "")),
    ):
        name = CallName()
        called(name).tell_use(prompt_tokens=3, generated_tokens=5)
        called(name).tell_use(sound_seconds=1.5)
        called("0" * 32).tell_use(prompt_tokens=99)
        (tmp_path / "uses").write_bytes(b"words \xff that no model writes\n")
        await asyncio.sleep(0.05)
        late = called(name)
        del name
        late.tell_use(prompt_tokens=99)
        await asyncio.sleep(0.05)
    told = [line.split() for line in callers.metrics().splitlines() if line[0] != "#"]
    counts = {name: float(value) for name, value in told if float(value)}
    assert counts == {
        'hf_triton_caller_requests_total{caller="alice"}': 1,
        'hf_triton_caller_prompt_tokens_total{caller="alice"}': 3,
        'hf_triton_caller_generated_tokens_total{caller="alice"}': 5,
        'hf_triton_caller_sound_seconds_total{caller="alice"}': 1.5,
    }
    assert 'hf_triton_caller_images_total{caller="bob"} 0' in callers.metrics()
    assert not any(secret in callers.metrics() for secret in (ALICE, KEYS[0].alias))
    bob = callers.metrics(callers.of(f"Bearer {BOB}".encode(), ""))
    assert ('caller="bob"' in bob, 'caller="alice"' in bob) == (True, False)


def test_callers_without_keys_are_counted_together_and_none_where_nothing_is() -> None:
    callers = Callers(Access(limits=Limits(tokens_per_minute=600)))
    for address in ("1.2.3.4", "5.6.7.8"):
        account = callers.of(None, address)
        assert account
        account.enter()
    assert 'hf_triton_caller_requests_total{caller=""} 2\n' in callers.metrics()
    assert Callers(EVERYBODY).metrics() == ""


def test_an_alias_tells_neither_the_key_nor_the_name() -> None:
    alias = KEYS[0].alias
    assert ALICE not in alias
    assert "alice" not in alias
    assert alias == Caller("renamed", ALICE).alias != KEYS[1].alias
    assert ALICE not in repr(KEYS[0])


def test_a_file_of_keys_has_a_line_for_each() -> None:
    text = f"""
    # those who may ask
    alice {ALICE}
    bob   {BOB} concurrent_requests=8 requests_per_minute=600 tokens_per_minute=9  # at night
    """
    assert api_keys.parse(text, "keys") == (
        Caller("alice", ALICE),
        Caller("bob", BOB, Limits(600, 8, 9)),
    )


@pytest.mark.parametrize(
    "line, expected",
    [
        ("alice", "expected a name of letters"),
        ("alice short", "a key of 16 to 256"),
        (f"-alice {ALICE}", "expected a name of letters"),
        (f"alice {ALICE} {BOB}", "requests_per_minute=N, concurrent_requests=N and tokens_per"),
        (f"alice {ALICE} concurrent_requests=0", "from 1 to 999999999"),
        (f"alice {ALICE} tokens_per_minute=many", "from 1 to 999999999"),
        (f"alice {ALICE} requests_per_minute=1000001", "of requests to 1000000"),
        (f"first {BOB}", "for the second time"),
        (f"other {'0' * 16}", "for the second time"),
    ],
)
def test_a_wrong_line_is_named_and_no_key_shown(line: str, expected: str) -> None:
    with pytest.raises(ServerError) as caught:
        api_keys.parse(f"first {'0' * 16}\n\n{line}\n", "keys.txt")
    text = str(caught.value)
    assert text.startswith("keys.txt:3: ")
    assert expected in text
    assert not any(key in text for key in (ALICE, BOB, "short", "0" * 16))


def test_the_environment_loses_the_keys() -> None:
    environment = {api_keys.VARIABLE: f"alice {ALICE}\nbob {BOB}"}
    assert [caller.name for caller in api_keys.take_api_keys(None, environment)] == ["alice", "bob"]
    assert environment == {}
    assert api_keys.take_api_keys(None, {}) == ()
    with pytest.raises(ServerError, match="OPENAI_KEY: it was removed; use HF_TRITON_API_KEYS"):
        api_keys.take_api_keys(None, {"HF_TRITON_OPENAI_KEY": "x"})


def test_a_file_without_keys_protects_nothing() -> None:
    with pytest.raises(ServerError, match="got no key"):
        api_keys.parse("# nobody yet\n", "keys.txt")


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
