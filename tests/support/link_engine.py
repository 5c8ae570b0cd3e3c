"""An engine at its end of the link, which answers when it is told to."""

from __future__ import annotations

from collections.abc import Callable

from hf_triton.runtime.link.listener import EngineListener
from hf_triton.runtime.request.request import Request
from tests.support.triton import eventually


class LinkEngine:
    """Keeps the requests that it has taken, and gives each to ``handle``."""

    def __init__(
        self, handle: Callable[[Request], None] = lambda _: None, name: str = "m_stream"
    ) -> None:
        self.taken: list[Request] = []
        self._handle = handle
        self.listener = EngineListener(name, self._take)

    def _take(self, request: Request) -> None:
        self.taken.append(request)
        self._handle(request)

    def waits_for(self, number: int) -> list[Request]:
        assert eventually(lambda: len(self.taken) >= number)
        assert len(self.taken) == number
        return self.taken

    def vanish(self) -> None:
        """Dies, as far as its peers can see."""
        self.listener.stop_listening()
        for peer in list(self.listener.callers):
            peer.close()

    def __enter__(self) -> LinkEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
