"""The parameter that the proxy of the gRPC port adds to a stream's request whose client asks Triton
for an empty last response. Triton itself tells a model nothing of that.

pytriton's clients ask for it, and drop the response that is marked as the last, whatever is in it.
"""

from __future__ import annotations

EMPTY_FINAL = "hf-triton-empty-final"
