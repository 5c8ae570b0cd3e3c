"""Finds who sends a request, by its key or else its address, counts it against its limits, and
counts what it uses: models tell that, by a pipe, under the names of their calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Network, ip_address
from weakref import WeakValueDictionary

from generator.models_yaml.server_settings import Limits
from hf_triton.ports.call_files import LEFT_S
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.settings import Access
from hf_triton.runtime.request.request_parameters import USES

_SCHEME = b"bearer "
_MAX_KNOWN = 10_000  # addresses whose requests are counted
_SECRET = os.urandom(32)
_PIPE_BYTES = 1 << 16  # that a pipe holds
_ROUNDING = 1e-6
METRICS = {
    "requests": "Requests",
    "prompt_tokens": "Tokens of prompts and of encoders' texts",
    "generated_tokens": "Generated tokens",
    "images": "Images",
    "sound_seconds": "Seconds of sound",
}
# A client request's calls to Triton that go on though nobody waits for them.
LEFT: ContextVar[set[asyncio.Task[None]]] = ContextVar("LEFT")
_ACCOUNT: ContextVar[Account | None] = ContextVar("ACCOUNT", default=None)


class Allowance:
    """The requests or tokens that a caller may use ``per_minute``; 0 is no limit. They come back as
    time goes. More may be used than are left: how many tokens is known only when they are used.
    """

    def __init__(self, what: str, per_minute: int, clock: Callable[[], float]) -> None:
        self._what, self._per_minute, self._clock = what, per_minute, clock
        self._each_s = 60 / (per_minute or math.inf)
        self._whole_at_s = clock()  # the time at which all is left

    @property
    def _whole_in_s(self) -> float:
        return max(0.0, self._whole_at_s - self._clock())

    def use(self, number: float) -> None:
        self._whole_at_s = self._clock() + self._whole_in_s + number * self._each_s

    def check(self) -> None:
        """Raises RefusedError (429) where nothing is left."""
        missing_s = self._whole_in_s + self._each_s - 60
        if missing_s > _ROUNDING:
            wait_s = math.ceil(missing_s)
            text = f"got more than {self._per_minute} {self._what} in a minute from one caller"
            raise RefusedError(429, f"{text}; wait {wait_s} s", {"Retry-After": str(wait_s)})

    def headers(self) -> Mapping[str, str]:
        """OpenAI's: https://platform.openai.com/docs/guides/rate-limits."""
        if not self._per_minute:
            return {}
        left = int(self._per_minute * max(0, 1 - self._whole_in_s / 60) + _ROUNDING)
        told = {"limit": self._per_minute, "remaining": left, "reset": f"{self._whole_in_s:.3f}s"}
        return {f"x-ratelimit-{name}-{self._what}": str(value) for name, value in told.items()}


@dataclass
class Account:
    """Use that a caller has made of its limits; ``alias`` is its opaque name, "" without a key.
    ``used`` has all since the start, by the names of metrics.
    """

    max_running: int
    requests: Allowance
    tokens: Allowance
    alias: str
    used: Counter[str]
    num_running: int = 0

    def enter(self) -> None:
        """Counts a request that begins. Raises RefusedError (429) where it is one too many."""
        most = self.max_running
        if most and self.num_running >= most:
            text = f"got more than {most} requests at once from one caller; send them one by one"
            raise RefusedError(429, text, {"Retry-After": "1"})
        self.count()
        self.num_running += 1

    def count(self) -> None:
        """Counts a request of a minute. Raises RefusedError (429) where it is one too many."""
        self.requests.check()
        self.tokens.check()
        self.requests.use(1)
        self.used["requests"] += 1

    def leave(self) -> None:
        self.num_running -= 1

    def use(self, numbers: Mapping[str, float]) -> None:
        """Counts what a model has told of a call."""
        self.used.update(numbers)
        self.tokens.use(numbers["prompt_tokens"] + numbers["generated_tokens"])

    def headers(self) -> Mapping[str, str]:
        return {**self.requests.headers(), **self.tokens.headers()}


class Callers:
    """The accounts of those who ask, over all ports of a process."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used: dict[str, Counter[str]] = {}  # by the name of a key; "" of all addresses
        self._by_digest = {
            _digest(one.key.encode()): self._account(
                one.limits or access.limits, one.name, one.alias
            )
            for one in access.callers
        }
        self._of_address = lru_cache(_MAX_KNOWN)(lambda _: self._account(access.limits))
        self._counts = self.have_keys or access.limits != Limits()

    @property
    def have_keys(self) -> bool:
        """True if only callers with a key may ask."""
        return bool(self._by_digest)

    def of(self, authorization: bytes | None, address: str) -> Account | None:
        """The account to count a request to, None where nothing is counted.

        Raises RefusedError (401) where a key is needed and ``authorization`` has none.
        """
        if not self._by_digest:
            return self._of_address(of_one_caller(address)) if self._counts else None
        given = authorization or b""
        token = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else b""
        found = self._by_digest.get(_digest(token))
        if found is None:
            what = "a wrong API key" if given else "no API key"
            text = f"got {what}; send it as 'Authorization: Bearer KEY'"
            raise RefusedError(401, text, {"WWW-Authenticate": "Bearer"})
        return found

    def _account(self, limits: Limits, name: str = "", alias: str = "") -> Account:
        requests = Allowance("requests", limits.requests_per_minute, self._clock)
        tokens = Allowance("tokens", limits.tokens_per_minute, self._clock)
        used = self._used.setdefault(name, Counter())
        return Account(limits.concurrent_requests, requests, tokens, alias, used)

    def metrics(self, of: Account | None = None) -> str:
        """What callers have used, or one of them, in Prometheus' format; empty where nothing is
        counted.
        """
        lines = []
        for name, about in METRICS.items() if self._used else ():
            family = f"hf_triton_caller_{name}_total"
            lines += [f"# HELP {family} {about}", f"# TYPE {family} counter"]
            told = ((one, n[name]) for one, n in self._used.items() if not of or n is of.used)
            lines += [f'{family}{{caller="{one}"}} {number}' for one, number in told]
        return "".join(f"{line}\n" for line in lines)

    @contextlib.contextmanager
    def followed(self, path: str) -> Iterator[None]:
        """Counts what models tell of calls while the block runs, by a pipe."""
        if not self._counts:
            yield
            return
        with contextlib.suppress(FileExistsError):  # models write to that of the process before
            os.mkfifo(path, 0o600)
        loop, flags = asyncio.get_running_loop(), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        pipe = os.open(path, flags)
        loop.add_reader(pipe, _read_uses, pipe)
        try:
            yield
        finally:
            loop.remove_reader(pipe)
            os.close(pipe)


def _digest(token: bytes) -> bytes:
    """The digest by which a key is looked up. The time of a look-up tells nothing of a key, because
    nobody outside knows a token's digest.
    """
    return hmac.digest(_SECRET, token, "sha256")


@lru_cache(maxsize=_MAX_KNOWN)
def of_one_caller(address: str) -> str:
    """Returns what all addresses of a caller have in common: of IPv6 a caller has a whole /64."""
    try:
        found = ip_address(address)
    except ValueError:  # a Unix socket's
        return address
    if found.version == 4 or found.ipv4_mapped:
        return str(found if found.version == 4 else found.ipv4_mapped)
    return str(IPv6Network((int(found), 64), strict=False))


@contextlib.contextmanager
def counted(account: Account | None) -> Iterator[None]:
    """Counts a request while the block runs, and for a while what it has LEFT at Triton. Raises
    RefusedError.
    """
    if account:
        account.enter()
    left = set[asyncio.Task[None]]()
    LEFT.set(left)
    _ACCOUNT.set(account)
    try:
        yield
    finally:
        if account and left:
            asyncio.create_task(_leave_after(account, left))  # noqa: RUF006, those left hold it
        elif account:
            account.leave()


async def _leave_after(account: Account, left: Collection[asyncio.Task[None]]) -> None:
    await asyncio.wait(left, timeout=LEFT_S)
    account.leave()


class CallName(str):
    """The name of a call to Triton, which nobody can guess. While it is held, what the call uses is
    counted.
    """

    account: Account | None

    def __new__(cls) -> CallName:
        name = super().__new__(cls, secrets.token_hex(16))
        name.account = _ACCOUNT.get()
        if name.account:
            _calls[str(name)] = name
        return name


_calls = WeakValueDictionary[str, CallName]()


def _read_uses(pipe: int) -> None:
    for line in os.read(pipe, _PIPE_BYTES).decode(errors="replace").splitlines():
        name, *numbers = line.split()
        if (call := _calls.get(name)) and call.account:
            call.account.use(dict(zip(USES, map(float, numbers), strict=True)))
