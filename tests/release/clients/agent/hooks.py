"""Makes a model write what its user wants of it, token by token as any answer that is held to a
form: the user's text has ``<script>``, a JSON list of answers, ``</script>``, and of those it is
the one after as many as the assistant has given since. An object is a call of a tool. Where nobody
says anything, the answer is "Done.".
"""

from __future__ import annotations

import json
import re
from typing import Any

from hf_triton.hooks import HookRequest

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
    scripts = [*map(_script, messages)]
    script = next(filter(None, reversed(scripts)), None)
    if script is None:
        return "Done."
    since = scripts.index(script)  # a client may say it again with each call's output
    num_given = sum(one["role"] == "assistant" for one in messages[since:])
    answers = [*json.loads(script), "Done."]
    answer = answers[min(num_given, len(answers) - 1)]
    return answer if isinstance(answer, str) else _CALL.format(json.dumps(answer))


def _script(message: dict[str, Any]) -> str | None:
    """The script in a user's message, whose text comes whole or in parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    found = _SCRIPT.search("".join(part.get("text") or "" for part in parts))
    return found[1] if found and message["role"] == "user" else None
