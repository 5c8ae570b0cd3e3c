"""Responses that callers may refer to later. They stay in memory for a while; each caller has its
own limit of bytes, so that none evicts another's. Knows no HTTP library.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal

from msgspec import Raw, Struct, json

from hf_triton.ports.openai.schema.body import Json, check_structure, num_structure
from hf_triton.ports.openai.schema.errors import ApiError, of_field

_MOST_BYTES = 32 * 2**20  # of one caller
ALL_BYTES = 256 * 2**20
_LEAST_BYTES = 32 * 2**10  # that each counts, which bounds how many there are
PREFIX = "resp_"
# The id of the response before, and the items of the input and the output.
_Turn = tuple[str | None, list[Any], list[Json]]
_NUM_DIGITS = 32  # after it


def item_id(prefix: str, response_id: str, number: int) -> str:
    """The id of a response's item, by which the response is found."""
    return f"{prefix}_{response_id.removeprefix(PREFIX)}{number:02}"


@dataclass
class _Kept:
    """A response's fields and the items of its input, as JSON. ``owner`` may read it; ``payer`` is
    counted, which is the address of a caller without a key.
    """

    owner: str
    payer: str
    response: Mapping[str, Raw]
    items: bytes
    num_bytes: int
    until_s: float = 0


@dataclass
class KeptResponses:
    """The responses that one port keeps, none where ``keep_s`` is 0. Any thread may ask."""

    keep_s: float
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)  # the last used at the end
    _num_bytes: Counter[str] = field(default_factory=Counter)  # by payer
    _lock: RLock = field(default_factory=RLock)

    def num_bytes_of(self, payer: str) -> int:
        return self._num_bytes[payer]

    def put(self, response_id: str, new: _Kept) -> bool:
        if not self.keep_s or new.num_bytes > _MOST_BYTES:
            return False
        with self._lock:
            self._use(response_id, new)
            self._num_bytes[new.payer] += new.num_bytes
            self._drop_beyond(new.payer, _MOST_BYTES)
            while self._num_bytes.total() > ALL_BYTES:
                [(payer, num_bytes)] = self._num_bytes.most_common(1)
                self._drop_beyond(payer, num_bytes - 1)
        return True

    def find(self, response_id: str, owner: str) -> _Kept | None:
        """Finds the owner's response, and keeps it for the whole time again."""
        with self._lock:
            now_s = self.clock()
            while self._kept and next(iter(self._kept.values())).until_s < now_s:
                self.drop(next(iter(self._kept)))
            found = self._kept.get(response_id)
            if found is None or found.owner != owner:
                return None
            self._use(response_id, found)
            return found

    def drop(self, response_id: str) -> None:
        with self._lock:
            if kept := self._kept.pop(response_id, None):
                self._num_bytes[kept.payer] -= kept.num_bytes
                if not self._num_bytes[kept.payer]:
                    del self._num_bytes[kept.payer]

    def _use(self, response_id: str, kept: _Kept) -> None:
        kept.until_s = self.clock() + self.keep_s
        self._kept[response_id] = kept
        self._kept.move_to_end(response_id)

    def _drop_beyond(self, payer: str, most_bytes: int) -> None:
        while self._num_bytes[payer] > most_bytes:
            self.drop(next(found for found, one in self._kept.items() if one.payer == payer))


class Deleted(Struct):
    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class EarlierResponses:
    """The responses that one request may refer to. It reads no more of them than a body may be."""

    def __init__(self, kept: KeptResponses, owner: str = "", payer: str = "") -> None:
        self._kept, self._owner, self._payer = kept, owner, payer
        self._read: dict[str, _Turn] = {}  # by the id of a response
        self._num_structure = 0
        self._referred: set[str] = set()

    @property
    def num_bytes(self) -> int:
        """An upper limit of the bytes that are read."""
        return self._kept.num_bytes_of(self._payer)

    @property
    def are_kept(self) -> bool:
        return self._kept.keep_s > 0

    def response(self, response_id: str) -> Mapping[str, Raw]:
        return self._found(response_id, _not_kept(404, "id")).response

    def until(self, response_id: str) -> list[Json]:
        """The items of that response's input and output, after those of all before it."""
        missing = _not_kept(400, "previous_response_id", "previous_response_not_found")
        found: list[list[Json]] = []
        at: str | None = response_id
        while at is not None:
            at, items, output = self._turn(at, missing)
            found.append([*items, *output])
        return [item for items in reversed(found) for item in items]

    def item(self, where: str, item_id: Any) -> Json:
        missing = _not_kept(400, where)
        if not isinstance(item_id, str) or item_id in self._referred:
            raise missing
        self._referred.add(item_id)
        digits = item_id.partition("_")[2][:_NUM_DIGITS]
        _, _, output = self._turn(f"{PREFIX}{digits}", missing)
        found = next((item for item in output if item["id"] == item_id), None)
        if found is None:
            raise missing
        return found

    def put(self, response_id: str, response: Any, items: list[Any]) -> bool:
        """Keeps a response to the items of its input."""
        told, said = json.encode(response), json.encode(items)
        fields = json.decode(told, type=dict[str, Raw])
        num_bytes = max(_LEAST_BYTES, len(told) + len(said))
        return self._kept.put(response_id, _Kept(self._owner, self._payer, fields, said, num_bytes))

    def delete(self, response_id: str) -> Deleted:
        self.response(response_id)
        self._kept.drop(response_id)
        return Deleted(response_id)

    def _found(self, response_id: str, missing: ApiError) -> _Kept:
        kept = self._kept.find(response_id, self._owner)
        if kept is None:
            raise missing
        return kept

    def _turn(self, response_id: str, missing: ApiError) -> _Turn:
        found = self._found(response_id, missing)
        if response_id not in self._read:
            output = bytes(found.response["output"])
            self._num_structure += num_structure(found.items) + num_structure(output)
            check_structure(self._num_structure)
            before = json.decode(found.response["previous_response_id"])
            self._read[response_id] = before, json.decode(found.items), json.decode(output)
        return self._read[response_id]


def _not_kept(status: int, name: str, code: str | None = None) -> ApiError:
    text = "not kept here, or no longer; send the earlier items in input"
    return of_field(name, text, status, code)


NOTHING = EarlierResponses(KeptResponses(0))
