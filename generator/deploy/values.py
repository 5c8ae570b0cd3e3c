"""What flags of ``deploy`` may say, each value by itself: argparse's types.

Every one raises ArgumentTypeError with what was got and what is expected.
"""

from __future__ import annotations

import argparse
import re
from functools import partial

_DNS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SIZE = re.compile(r"([1-9][0-9]{0,6})(Mi|Gi|Ti)")
_MEBIBYTES = {"Mi": 1, "Gi": 1024, "Ti": 1024**2}
# https://pkg.go.dev/github.com/distribution/reference: registry/name:tag@digest
_IMAGE = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?"
    r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_LABEL = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
    r"=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
)
MAX_NAME = 40  # a model's name, and what kind of thing it is, still follow


def _matching(pattern: re.Pattern[str], expected: str, longest: int, text: str) -> str:
    if len(text) > longest or not pattern.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected {expected}")
    return text


_NAME = re.compile(rf"(?![0-9]){_DNS.pattern}")
_DOTTED = re.compile(rf"(?=.{{1,253}}$){_PART}(\.{_PART})*")
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")
_OF_NAME = f"lower-case letters, digits and -, at most {MAX_NAME}, a letter first"
name = partial(_matching, _NAME, _OF_NAME, MAX_NAME)
dns_label = partial(_matching, _DNS, "lower-case letters, digits and -, at most 63", 63)
dns_name = partial(_matching, _DOTTED, "a name of lower-case letters, digits, - and .", 253)
image = partial(_matching, _IMAGE, "an image's name, such as my-registry/hf-triton:gpu", 255)
label = partial(_matching, _LABEL, "a label such as pool=gpu", 253)
address = partial(_matching, _ADDRESS, "an IP address, such as 127.0.0.1 or 0.0.0.0", 45)


def folder(text: str) -> str:
    """An absolute path in a container, without a slash at its end."""
    if not re.fullmatch(r"/[A-Za-z0-9._/-]*", text) or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected an absolute path")
    return text.rstrip("/") or "/"


def size(text: str) -> int:
    """Mebibytes."""
    found = _SIZE.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"got {text[:80]!r}, expected a whole number of Mi, Gi or Ti, such as 16Gi"
        )
    return int(found[1]) * _MEBIBYTES[found[2]]


def cores(text: str) -> str:
    """Cores, in parts too; as it was written."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or float(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected cores, such as 4 or 0.5")
    return text
