"""Explains errors of a transfer in one line: the cause, whether a retry may help, and what to do.
Never quotes a token, or the credentials in an address.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path

from generator.errors import FetchError, mask_tokens
from generator.fetch.progress import size
from generator.spec.runtime_rules import UnusableTokenError, error_line

_TEMPORARY = (408, 429, 500, 502, 503, 504)
_LASTING = ("UnsupportedProtocol", "LocalProtocolError", "TooManyRedirects")


class UnreachableStoreError(FetchError):
    """An object store did not answer, or not completely."""


def is_temporary(error: BaseException) -> bool:
    """Whether a retry may help: no connection, a cut connection, or a busy Hub."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, UnreachableStoreError):
        return True
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _TEMPORARY
    # httpx in huggingface_hub 1, httpx2 in 2; both errors' base is the first of HfHubHTTPError's.
    is_http = isinstance(error, HfHubHTTPError.__bases__[0])
    return is_http and type(error).__name__ not in _LASTING


def brief(error: BaseException) -> str:
    """The cause of a temporary failure, in a few words."""
    if isinstance(error, UnreachableStoreError):
        return str(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"HTTP {status}" if status else mask_tokens(error_line(error))


def explain(error: BaseException, source: str, commit: str | None = None) -> str:
    """The line for a model whose fetch failed: the cause and what to do."""
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
    """The server an error is about: the Hub, or the host it redirects to."""
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
    if status == 429:
        return "the Hub asks to slow down (HTTP 429): run again later, or set HF_TOKEN"
    if status in _TEMPORARY:
        return f"the Hub has trouble (HTTP {status}): run again later; what is here is kept"
    return f"the Hub answers HTTP {status}"


def _lack(path: Path, num_bytes: int | None) -> str:
    """The space that the rest of a file needs, and the free space, where known."""
    with contextlib.suppress(OSError):
        if num_bytes is not None:
            free = shutil.disk_usage(path.parent).free
            return f" ({size(num_bytes)} more of it are to come, {size(free)} are free)"
    return ""


def disk_error(error: OSError, path: Path, num_bytes: int | None = None) -> FetchError:
    """Explains a failed write; ``num_bytes`` were still to be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        room = "make room and run again; what is here is kept"
        return FetchError(
            f"{path} can't be written: {error.strerror}{_lack(path, num_bytes)}: {room}"
        )
    place = error.filename2 or error.filename or path
    if error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
        return FetchError(f"{place} is in the way ({error.strerror}): remove it and run again")
    return FetchError(f"{place} can't be written: {error.strerror}")
