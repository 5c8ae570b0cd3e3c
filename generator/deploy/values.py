"""What flags of ``deploy`` may say, each value by itself: argparse's types.

Every one raises ArgumentTypeError with what was got and what is expected.
"""

from __future__ import annotations

import argparse
import re

_DNS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
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
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")
MAX_NAME = 40  # a model's name, and what kind of thing it is, still follow


def _matching(pattern: re.Pattern[str], text: str, expected: str, longest: int = 253) -> str:
    if len(text) > longest or not pattern.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected {expected}")
    return text


def name(text: str) -> str:
    """The name of the whole, from which those of its objects are made."""
    wanted = f"lower-case letters, digits and -, at most {MAX_NAME}, a letter first"
    if text[:1].isdigit():
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected {wanted}")
    return _matching(_DNS, text, wanted, MAX_NAME)


def dns_label(text: str) -> str:
    """A name without dots."""
    return _matching(_DNS, text, "lower-case letters, digits and -, at most 63", 63)


def dns_name(text: str) -> str:
    """A name of an object, or of a host."""
    expected = "a name of lower-case letters, digits, - and ."
    for part in text.split("."):
        _matching(_DNS, part, expected, 63)
    return _matching(re.compile(".+"), text, expected)


def image(text: str) -> str:
    return _matching(_IMAGE, text, "an image's name, such as my-registry/hf-triton:gpu", 255)


def label(text: str) -> str:
    """``KEY=VALUE``, as nodes have it."""
    return _matching(_LABEL, text, "a label such as pool=gpu")


def address(text: str) -> str:
    return _matching(_ADDRESS, text, "an IP address, such as 127.0.0.1 or 0.0.0.0")


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
