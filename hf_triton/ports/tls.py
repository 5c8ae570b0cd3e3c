"""The TLS of a public port."""

from __future__ import annotations

import ssl

from generator.errors import ServerError
from generator.spec.access import Tls


def tls_context(tls: Tls | None) -> ssl.SSLContext | None:
    """What a port speaks TLS with, None where it speaks none. Raises ServerError for files that
    can't be used.
    """
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")  # nobody is asked
    except OSError as error:  # SSLError is one
        is_tls = isinstance(error, ssl.SSLError)
        reason = "no PEM, encrypted, or not a pair" if is_tls else error.strerror
        raise ServerError(
            f"models.yaml's server.tls: {tls.certificate} and {tls.key} can't be used: {reason}"
        ) from None
    return context
