"""``async with timeout(seconds):`` ends what is awaited in it with asyncio.TimeoutError.

asyncio's own, which Python 3.10 has not. ``asyncio.wait_for`` is not used: up to Python 3.11 it
swallows a cancel when what it waits for has just ended, and who was cancelled goes on.
"""

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:  # aiohttp brings it there
    from async_timeout import timeout

__all__ = ["timeout"]
