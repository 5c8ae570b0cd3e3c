"""Finds who sends a request, by its key or else its address, and counts it against its limits."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Network, ip_address

from generator.spec.access import Limits
from hf_triton.ports.call_files import LEFT_S
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.settings import Access

_SCHEME = b"bearer "
_MAX_KNOWN = 10_000  # addresses whose requests are counted
_SECRET = os.urandom(32)
# A client request's calls to Triton that go on though nobody waits for them.
LEFT: ContextVar[set[asyncio.Task[None]]] = ContextVar("LEFT")


@dataclass
class Account:
    """Use that a caller has made of ``limits``; ``alias`` is its opaque name, "" without a key."""

    limits: Limits
    alias: str
    clock: Callable[[], float]
    tokens: float
    filled_at_s: float
    num_running: int = 0

    def enter(self) -> None:
        """Counts a request that begins. Raises RefusedError (429) where it is one too many."""
        most = self.limits.concurrent_requests
        if most and self.num_running >= most:
            text = f"got more than {most} requests at once from one caller; send them one by one"
            raise RefusedError(429, text, {"Retry-After": "1"})
        self.count()
        self.num_running += 1

    def count(self) -> None:
        """Counts a request of a minute. Raises RefusedError (429) where it is one too many."""
        now, per_minute = self.clock(), self.limits.requests_per_minute
        if per_minute:
            gained = (now - self.filled_at_s) * per_minute / 60
            self.tokens, self.filled_at_s = min(per_minute, self.tokens + gained), now
            if self.tokens < 1:
                wait_s = math.ceil((1 - self.tokens) * 60 / per_minute)
                text = f"got more than {per_minute} requests in a minute from one caller"
                raise RefusedError(429, f"{text}; wait {wait_s} s", {"Retry-After": str(wait_s)})
            self.tokens -= 1

    def leave(self) -> None:
        self.num_running -= 1


class Callers:
    """The accounts of those who ask, over all ports of a process."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._access, self._clock = access, clock
        self._by_digest = {
            _digest(one.key.encode()): self._new_account(one.limits or access.limits, one.alias)
            for one in access.callers
        }
        self._by_address: OrderedDict[str, Account] = OrderedDict()
        self._are_limited = access.limits != Limits()

    @property
    def have_keys(self) -> bool:
        """True if only callers with a key may ask."""
        return bool(self._by_digest)

    def of(self, authorization: bytes | None, address: str) -> Account | None:
        """The account to count a request to, None where nothing is counted.

        Raises RefusedError (401) where a key is needed and ``authorization`` has none.
        """
        if not self._by_digest:
            return self._of_address(address) if self._are_limited else None
        given = authorization or b""
        token = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else b""
        found = self._by_digest.get(_digest(token))
        if found is None:
            what = "a wrong API key" if given else "no API key"
            text = f"got {what}; send it as 'Authorization: Bearer KEY'"
            raise RefusedError(401, text, {"WWW-Authenticate": "Bearer"})
        return found

    def _new_account(self, limits: Limits, alias: str = "") -> Account:
        return Account(limits, alias, self._clock, limits.requests_per_minute, self._clock())

    def _of_address(self, address: str) -> Account:
        address = of_one_caller(address)
        account = self._by_address.pop(address, None) or self._new_account(self._access.limits)
        self._by_address[address] = account
        if len(self._by_address) > _MAX_KNOWN:
            self._by_address.popitem(last=False)
        return account


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
