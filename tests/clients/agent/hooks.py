"""Makes a model write what its user wants of it, token by token as any answer that is held to a
form: the user's text has ``<script>``, a JSON list of answers, ``</script>``, and of those it is
the one after as many as the assistant has given since. An object is a call of a tool. Where nobody
says anything, the answer is "Done.".
"""

from __future__ import annotations

import json
import re
from typing import Any

from hf_runtime.hooks import HookRequest

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_CALL = "<tool_call>\n{}\n</tool_call>"


def preprocess(request: HookRequest) -> None:
    """Holds the answer to the one that is due."""
    if "messages" not in request:
        return
    sampling = json.loads(request.text("sampling_parameters", "{}"))
    sampling.pop("json_schema", None)
    answer = _answer(json.loads(request.text("messages")))
    sampling["structured_outputs"] = {"choice": [answer]}
    request["sampling_parameters"] = json.dumps(sampling)


def _answer(messages: list[dict[str, Any]]) -> str:
    num_given = 0
    for message in reversed(messages):
        num_given += message["role"] == "assistant"
        found = _SCRIPT.search(_text(message.get("content"))) if message["role"] == "user" else None
        if found:
            answers = [*json.loads(found[1]), "Done."]
            answer = answers[min(num_given, len(answers) - 1)]
            return answer if isinstance(answer, str) else _CALL.format(json.dumps(answer))
    return "Done."


def _text(content: Any) -> str:
    """All of a message's text, which comes whole or in parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(part.get("text") or "" for part in parts)
