"""The texts of a request as every task wants them: there, UTF-8, and not empty."""

from __future__ import annotations

from hf_runtime.errors import RequestError
from hf_runtime.tensors import RequestFields, each_row


def required_texts(fields: RequestFields, name: str, *partners: str) -> list[str]:
    """The text of each row of a tensor that a request must have.

    ``partners`` are the tensors that are of use only together with it.

    Raises:
        RequestError: missing, empty, or no UTF-8.
    """
    texts = fields.optional_texts(name)
    if None in texts:
        raise RequestError(f"{name}: missing, {_wanted(name, partners)}")
    return each_row(lambda text: filled(name, text or ""), texts)


def filled(name: str, text: str) -> str:
    """``text``; raises RequestError where there is nothing in it but white space, of which a model
    makes numbers without a meaning.
    """
    if not text or text.isspace():
        raise RequestError(
            f"{name}: got an empty text, allowed: a text that is not only white space"
        )
    return text


def _wanted(name: str, partners: tuple[str, ...]) -> str:
    together = " and ".join((name, *partners))
    return f"send {together} together" if partners else "a text is required"
