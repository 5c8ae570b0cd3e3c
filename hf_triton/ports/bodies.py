"""The memory that requests may take: each a bounded size, and those of all ports together."""

from __future__ import annotations

from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.settings import MIB

_ALL_MIB = 512  # but two of the largest requests at least
SMALL_BYTES = 65_536  # of a request that there is always room for


class Bodies:
    """Requests that come, or that tritonserver does not have yet: ``num_bytes`` of them."""

    def __init__(self, max_mib: int) -> None:
        self.num_bytes, self.max_bytes = 0, max_mib * MIB
        self._most_bytes = max(_ALL_MIB, 2 * max_mib) * MIB
        self._allowed = f"{max_mib} MiB (max_body_mib in models.yaml's server:)"

    def has_room(self, num_bytes: int, request_bytes: int) -> bool:
        """Whether ``num_bytes`` more may be held, of a request of which there are then so many."""
        is_full = self.num_bytes + num_bytes > self._most_bytes
        return request_bytes <= SMALL_BYTES or not is_full

    def may_keep(self, request_bytes: int) -> bool:
        """Whether a request that tritonserver has may be held still, to be sent again."""
        return request_bytes <= SMALL_BYTES or self.num_bytes <= self._most_bytes // 2

    def check_length(self, num_bytes: int) -> None:
        """Raises RefusedError for a body that says that it is too large."""
        if num_bytes > self.max_bytes:
            raise self._too_large(f"{num_bytes} bytes")

    def take(self, num_bytes: int, request_bytes: int) -> None:
        """Counts ``num_bytes`` more of a body of which there are then so many. Raises RefusedError
        where they are too many.
        """
        if request_bytes > self.max_bytes:
            raise self._too_large("more")
        if not self.has_room(num_bytes, request_bytes):
            text = "too many large bodies come at once; try again"
            raise RefusedError(503, text, {"Retry-After": "1"})
        self.num_bytes += num_bytes

    def _too_large(self, got: str) -> RefusedError:
        return RefusedError(413, f"the body: got {got}, allowed: {self._allowed}")
