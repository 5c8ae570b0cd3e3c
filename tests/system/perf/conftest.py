"""The one server with the demo model in both profiles."""

from tests.served.clients.conftest import triton

__all__ = ["triton"]
