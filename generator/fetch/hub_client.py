"""Asks the Hub for the commit and files of a revision, and for a file's bytes from an offset.

``huggingface_hub`` lists files. Its own downloads (up to 2.4) check a file's size but not its hash,
and delete partial files when they fail. So bytes are requested here by plain HTTP ranges (not by
xet, which can't resume), and partial_file.py stores and checks them. Knows no cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, TypeVar

from generator.errors import FetchError
from generator.fetch.hub_errors import endpoint, is_temporary
from generator.spec.runtime_rules import hub_token, is_safe_path

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts that got nowhere; after the last the fetch fails."""
MAX_WAIT_S = 120.0
LISTING_S = 60.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class HubFile:
    """A file of a model: its size in bytes, a SHA-256 (LFS, or locked) or its git object id, and
    for an object store its place and version.
    """

    size: int
    sha256: str | None = None
    git_oid: str | None = None
    version: str | None = None

    @property
    def name(self) -> str:
        """The file's name in huggingface_hub's cache."""
        return self.sha256 or self.git_oid or self.version or ""


@dataclass(frozen=True)
class Listing:
    """A commit and all of its files."""

    commit: str
    files: Mapping[str, HubFile]


class WrongContentError(FetchError):
    """The Hub sent other bytes than it listed."""


class InterruptedFetchError(FetchError):
    """The fetch was stopped from outside."""


def list_files(repository: str, revision: str) -> Listing:
    """Lists a revision's files. Raises huggingface_hub's errors and WrongContentError."""
    from huggingface_hub import HfApi, constants

    if not constants.ENDPOINT.startswith(("http://", "https://")):
        expected = "expected an address such as https://huggingface.co"
        raise FetchError(f"got HF_ENDPOINT {endpoint()!r}, {expected}")
    api = HfApi(token=hub_token())
    # Not list_repo_tree, which has no timeout.
    ask = partial(api.model_info, files_metadata=True, timeout=LISTING_S)
    try:
        info = ask(repository, revision=revision)
        files = {one.rfilename: _hub_file(one) for one in info.siblings or []}
        return Listing(_hexadecimal(info.sha, 40), files)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise WrongContentError(
            f"{endpoint()} does not answer as a Hub does: check HF_ENDPOINT, and whether the "
            "login page of a proxy or network stands in between"
        ) from None


def _hub_file(entry: Any) -> HubFile:
    if not is_safe_path(entry.rfilename):
        raise WrongContentError(f"{entry.rfilename!r} is not a path inside a repository")
    size = entry.size if entry.lfs is None else entry.lfs.size
    if not isinstance(size, int) or size < 0:
        raise ValueError(size)
    if entry.lfs is not None:
        return HubFile(size, sha256=_hexadecimal(entry.lfs.sha256, 64))
    return HubFile(size, git_oid=_hexadecimal(entry.blob_id, 40))


def _hexadecimal(text: str | None, length: int) -> str:
    """Checks ``text``, which becomes a file name. Raises ValueError, TypeError."""
    if text is None or not re.fullmatch(f"[0-9a-f]{{{length}}}", text):
        raise ValueError(text)
    return text


@contextmanager
def open_file(
    repository: str, commit: str, path: str, offset: int, file: HubFile
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Returns the offset at which the bytes begin, ``offset`` or 0, and the bytes as they come.

    Raises:
        WrongContentError: the file has another size than ``file``, or not these bytes come.
    """
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, not in __all__
        build_hf_headers,
        hf_raise_for_status,
    )

    headers = {**build_hf_headers(token=hub_token()), "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    url = hf_hub_url(repository, path, revision=commit)
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    # A redirect to another host (the CDN) keeps the range and drops the token.
    with get_session().stream(
        "GET", url, headers=headers, timeout=timeout, follow_redirects=True
    ) as response:
        hf_raise_for_status(response)
        start = _start(response.headers, offset) if response.status_code == 206 else 0
        if start not in (0, offset):
            raise WrongContentError(
                f"the Hub sends bytes from {start} on where those from {offset} are asked for"
            )
        total = _total(response.headers, start)
        if total is not None and total != file.size:
            raise WrongContentError(
                f"{path} has {total} bytes at the Hub where {file.size} are expected"
            )
        yield start, response.iter_bytes()


def _start(headers: Mapping[str, str], offset: int) -> int:
    """The offset at which a part begins: the requested one, unless the headers say otherwise."""
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return int(found[1]) if found else offset


def _total(headers: Mapping[str, str], start: int) -> int | None:
    """The whole file's size in bytes, read from the headers of a part."""
    if headers.get("Content-Encoding", "identity") != "identity":
        return None
    length = headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else None


def retried(
    action: Callable[[], Result], stop: Event, on_wait: Callable[[BaseException, float], None]
) -> Result:
    """Returns the result of ``action``, retried while the Hub is unreachable or busy."""
    waits = list(WAITS_S)
    while True:
        try:
            return action()
        except Exception as error:  # noqa: PERF203, one request costs far more
            if not (waits and is_temporary(error)):
                raise
            pause(error, waits.pop(0), stop, on_wait)


def pause(
    error: BaseException,
    wait_s: float,
    stop: Event,
    on_wait: Callable[[BaseException, float], None],
) -> None:
    """Waits, longer if the Hub asks for it. Raises InterruptedFetchError."""
    asked = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    seconds = min(max(wait_s, float(asked) if asked.isdecimal() else 0.0), MAX_WAIT_S)
    on_wait(error, seconds)
    if stop.wait(seconds):
        raise InterruptedFetchError("interrupted")
