"""The Hub's token: from the environment alone (``HF_TOKEN``, or ``PRIVATE_REPO_TOKEN`` as NVIDIA's
tutorial names it), and never in a log or an error.
"""

from __future__ import annotations

import os
import re

from ..errors import LoadError, reason

TOKEN_VARIABLES = ("HF_TOKEN", "PRIVATE_REPO_TOKEN")


class UnusableTokenError(LoadError):
    """What the environment has for a token can't be one."""


def hub_token() -> str | bool:
    """The environment's token; False, unlike None, keeps huggingface_hub from looking for more.

    Space around it is dropped: a Secret made from a file often ends in a line end.

    Raises:
        UnusableTokenError: it can't be sent, and an error about that would quote it.
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
    """An error's kind and text, without any token that the text may carry."""
    text = str(error) or type(error).__name__
    for name in TOKEN_VARIABLES:
        token = os.environ.get(name, "").strip()
        if token:
            text = text.replace(token, f"${name}")
    text = _without_credentials(text)
    # Cut last, so that no half of a token stays.
    return f"{type(error).__name__}: {reason(LoadError(text))}"


def _without_credentials(text: str) -> str:
    """``text`` without the user and password of addresses in it."""
    return re.sub(r"://[^/\s]+@", "://***@", text)
