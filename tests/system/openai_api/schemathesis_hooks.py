"""Has schemathesis ask models that are there, so that its requests get beyond their names."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import schemathesis

# The model of each path in which the pattern is found; the first one counts.
_MODELS: dict[str, str] = json.loads(os.environ["HF_TRITON_TEST_MODELS"])


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """The body; a model's name in it is one that is served."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return body
    path = context.operation.path
    fitting = (model for pattern, model in _MODELS.items() if re.search(pattern, path))
    return {**body, "model": next(fitting)}
