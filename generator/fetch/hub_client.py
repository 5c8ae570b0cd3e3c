"""Asks the Hub for the commit and files of a revision, and for a file's bytes from an offset.

``huggingface_hub`` lists files. Its own downloads (up to 2.4) check a file's size but not its hash,
and delete partial files when they fail. So bytes are requested here by plain HTTP ranges (not by
xet, which can't resume), and model_cache.py stores and checks them. Knows no cache.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from generator.errors import FetchError, mask_tokens
from hf_triton.runtime.weights.hub_files import (
    UnusableTokenError,
    error_line,
    hub_token,
    is_safe_path,
)

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts that got nowhere; after the last the fetch fails."""
MAX_WAIT_S = 120.0
LISTING_S = 60.0
_TEMPORARY = (408, 429, 500, 502, 503, 504)
_LASTING = ("UnsupportedProtocol", "LocalProtocolError", "TooManyRedirects")
Result = TypeVar("Result")
OnWait = Callable[[BaseException, float], None]  # an error, and the seconds until the next attempt


class WrongContentError(FetchError):
    """The Hub sent other bytes than it listed."""


class InterruptedFetchError(FetchError):
    """The fetch was stopped from outside."""


class UnreachableStoreError(FetchError):
    """An object store did not answer, or not completely."""


@dataclass(frozen=True)
class HubFile:
    """A file of a model: its size, a SHA-256 (LFS, or locked), a git object id or a store's
    version.
    """

    size: int
    sha256: str | None = None
    git_oid: str | None = None
    version: str | None = None

    @property
    def name(self) -> str:
        return self.sha256 or self.git_oid or self.version or ""


@dataclass(frozen=True)
class Listing:
    """What the Hub says of a revision: its word for the task, and what it has read of config.json,
    are empty where it knows none.
    """

    commit: str
    files: Mapping[str, HubFile]
    pipeline_tag: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def is_temporary(error: BaseException) -> bool:
    """Returns whether a retry may help: no connection, a cut connection, or a busy Hub."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, UnreachableStoreError | ConnectionError):
        return True
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _TEMPORARY
    # httpx in huggingface_hub 1, httpx2 in 2; both errors' base is the first of HfHubHTTPError's.
    is_http = isinstance(error, HfHubHTTPError.__bases__[0])
    return is_http and type(error).__name__ not in _LASTING


def brief(error: BaseException) -> str:
    if isinstance(error, UnreachableStoreError):
        return str(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"HTTP {status}" if status else mask_tokens(error_line(error))


def explain(error: BaseException, source: str, commit: str | None = None) -> str:
    from huggingface_hub import errors

    if isinstance(error, (FetchError, UnusableTokenError)):
        return f"{source}: {error}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{source}: not in the cache, and HF_HUB_OFFLINE is set: unset it to fetch"
    if isinstance(error, errors.GatedRepoError):
        terms = f"accept its terms on {endpoint()}/{source.partition('@')[0]}"
        return f"{source} is gated: {terms} and set HF_TOKEN to a token that may read it"
    if isinstance(error, errors.RevisionNotFoundError):
        if commit:
            return f"{source}: the Hub no longer has commit {commit}; lock another with --update"
        return f"{source}: the Hub has no such revision; check 'revision' in models.yaml"
    if isinstance(error, errors.RepositoryNotFoundError):
        private = "it is private and HF_TOKEN is not set to a token that may read it"
        return f"{source}: the Hub has no such model (check 'model'), or {private}"
    if isinstance(error, errors.EntryNotFoundError):
        return f"{source}: the Hub lists a file that it does not have; try again later"
    if isinstance(error, errors.HfHubHTTPError):
        return f"{source}: {_refusal(error.response.status_code)}"
    if is_temporary(error):
        where = "check the network, proxy settings and HF_ENDPOINT"
        return f"{source}: {_address(error)} can't be reached ({brief(error)}): {where}"
    return f"{source}: {brief(error)}"


def endpoint() -> str:
    """The Hub's address without its credentials."""
    from huggingface_hub import constants

    return mask_tokens(constants.ENDPOINT)


def _address(error: BaseException) -> str:
    try:
        url = error.request.url  # type: ignore[attr-defined]
        return f"{url.scheme}://{url.netloc.decode()}"  # httpx has removed the credentials
    except (AttributeError, RuntimeError):  # set only after a request was made
        return endpoint()


def _refusal(status: int) -> str:
    if status == 401:
        return "the Hub refuses the token in HF_TOKEN (HTTP 401): set a valid one, or none"
    if status == 403:
        return "the token in HF_TOKEN may not read it (HTTP 403): give it the permission"
    if status == 407:
        return "the proxy wants a user and a password (HTTP 407): add them to its address"
    if status == 429:
        return "the Hub asks to slow down (HTTP 429): run again later, or set HF_TOKEN"
    if status in _TEMPORARY:
        return f"the Hub has trouble (HTTP {status}): run again later; what is here is kept"
    return f"the Hub answers HTTP {status}"


def disk_error(error: OSError, path: Path, num_bytes: int | None = None) -> FetchError:
    """Explains a failed write; ``num_bytes`` were still to be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        lack = ""
        with contextlib.suppress(OSError):
            if num_bytes is not None:
                free = size(shutil.disk_usage(path.parent).free)
                lack = f" ({size(num_bytes)} more of it are to come, {free} are free)"
        room = "make room and run again; what is here is kept"
        return FetchError(f"{path} can't be written: {error.strerror}{lack}: {room}")
    place = error.filename2 or error.filename or path
    if error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
        return FetchError(f"{place} is in the way ({error.strerror}): remove it and run again")
    return FetchError(f"{place} can't be written: {error.strerror}")


def size(num_bytes: int) -> str:
    """Formats bytes as the Hub does: ``14.5 GB``."""
    for unit, least in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= least:
            return f"{num_bytes / least:.1f} {unit}"
    return f"{num_bytes} B"


def list_files(repository: str, revision: str) -> Listing:
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
        commit = _hexadecimal(info.sha, 40)
        return Listing(commit, files, str(info.pipeline_tag or ""), info.config or {})
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
    """The offset at which the bytes begin, ``offset`` or 0, and the bytes as they come. Raises
    WrongContentError where the file has another size than ``file``, or other bytes come.
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
        start = offset if response.status_code == 206 else 0
        if start and (said := re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))):
            start = int(said[1])
        if start not in (0, offset):
            raise WrongContentError(f"the Hub sent bytes from {start} on, {offset} was asked for")
        is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
        length = response.headers.get("Content-Length", "") if is_plain else ""
        if length.isdecimal() and (total := start + int(length)) != file.size:
            raise WrongContentError(
                f"{path} has {total} bytes at the Hub where {file.size} are expected"
            )
        yield start, response.iter_bytes()


def retried(
    action: Callable[[], Result],
    stop: Event,
    on_wait: OnWait,
    progress: Callable[[], int] = lambda: 0,
) -> Result:
    """Calls ``action`` again after a pause, longer if the Hub asks for it, when it fails for a
    while; an attempt that made ``progress`` costs none. Raises InterruptedFetchError.
    """
    waits, before = list(WAITS_S), progress()
    while True:
        try:
            return action()
        except Exception as error:  # noqa: PERF203, one request costs far more
            if progress() > before:
                waits = list(WAITS_S)
            if not (waits and is_temporary(error)):
                raise
            asked = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
            least_s = float(asked) if asked.isdecimal() else 0.0
            seconds, before = min(max(waits.pop(0), least_s), MAX_WAIT_S), progress()
            on_wait(error, seconds)
            if stop.wait(seconds):
                raise InterruptedFetchError("interrupted") from None
