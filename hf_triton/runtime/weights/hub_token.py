"""The Hub token: read from the environment only (``HF_TOKEN``, or ``PRIVATE_REPO_TOKEN`` as
NVIDIA's tutorial names it), and kept out of logs and errors.
"""

from __future__ import annotations

import os
import re

from ..errors import LoadError, reason

TOKEN_VARIABLES = ("HF_TOKEN", "PRIVATE_REPO_TOKEN")


class UnusableTokenError(LoadError):
    """The environment variable holds text that can't be a token."""


def hub_token() -> str | bool:
    """The environment's token, or False: with None huggingface_hub would look for one on disk.

    Space around it is dropped: a Kubernetes Secret made from a file often ends with a line end.

    Raises:
        UnusableTokenError: it can't be sent in a header, and the error about that would quote it.
    """
    for name in TOKEN_VARIABLES:
        token = os.environ.get(name, "").strip()
        if token and not re.fullmatch(r"[!-~]+", token):
            raise UnusableTokenError(
                f"{name} holds spaces, line ends or letters that no token has: set it anew"
            )
        if token:
            return token
    return False


def error_line(error: BaseException) -> str:
    """An error's type and text, without any token or password that the text may quote."""
    text = str(error) or type(error).__name__
    for name in TOKEN_VARIABLES:
        token = os.environ.get(name, "").strip()
        if token:
            text = text.replace(token, f"${name}")
    text = _without_credentials(text)
    # Cut to length last: a token that was cut in half would not be found.
    return f"{type(error).__name__}: {reason(LoadError(text))}"


def _without_credentials(text: str) -> str:
    """``text`` without the user names and passwords of its URLs."""
    return re.sub(r"://[^/\s]+@", "://***@", text)
