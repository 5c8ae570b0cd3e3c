"""The texts of a request as every task wants them: there, UTF-8, and not empty."""

from __future__ import annotations

from hf_runtime.errors import RequestError
from hf_runtime.tensors import RequestFields


def required_texts(fields: RequestFields, name: str, *partners: str) -> list[str]:
    """The text of each row of a tensor that a request must have.

    ``partners`` are the tensors that are of use only together with it.

    Raises:
        RequestError: missing, empty, or no UTF-8.
    """
    return [_present(name, found, partners) for found in fields.optional_texts(name)]


def filled(name: str, text: str) -> str:
    """``text``; raises RequestError where there is nothing in it but white space, of which a model
    makes numbers without a meaning.
    """
    if not text or text.isspace():
        raise RequestError(
            f"{name}: got an empty text, allowed: a text that is not only white space"
        )
    return text


def _present(name: str, found: str | None, partners: tuple[str, ...]) -> str:
    if found is not None:
        return filled(name, found)
    if partners:
        raise RequestError(f"{name}: missing, send {' and '.join((name, *partners))} together")
    raise RequestError(f"{name}: missing, a text is required")
