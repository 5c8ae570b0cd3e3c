"""The limits that a server is started with.

Where a limit on addresses refuses some, libraries abort with "Resource temporarily unavailable" and
no reason. Threads' stacks and libraries take tens of GiB of addresses of which little is ever used;
with a GPU, CUDA takes hundreds.
"""

from __future__ import annotations

import resource

# Some programs go through all that they may have.
_MOST_DESCRIPTORS = 1 << 20


def raise_all() -> None:
    """Raises this process' limits, which are its children's too, as far as it may: on addresses,
    and on file descriptors, of which each connection takes one (the usual 1,024 are there for
    programs that call select()).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2)
