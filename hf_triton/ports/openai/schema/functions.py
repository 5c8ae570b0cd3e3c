"""A chat's ``functions`` and ``function_call``, which OpenAI had before tools, as tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from hf_triton.ports.openai.schema.body import Json
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.names import Placed
from hf_triton.ports.openai.schema.request import Chat
from hf_triton.ports.openai.schema.tools import Chosen, Named

# What errors call the parts of tools.
NAMES = {"tools": "functions", "tool_choice": "function_call"}


class FunctionChat(Chat, kw_only=True):
    """A chat that may have them."""

    functions: list[Json] | None = None
    function_call: Literal["none", "auto"] | Named | None = None

    @property
    def has_functions(self) -> bool:
        """Whether it has any, or tells of earlier ones in its messages."""
        given = (self.functions, self.function_call)
        return given != (None, None) or any(map(_is_of, self.messages))

    def as_tools(self) -> Chat:
        """The same chat with tools. Raises ApiError, 400."""
        given = self.given("functions", "function_call")
        if given and (self.tools is not None or self.tool_choice is not None):
            raise bad_field(next(iter(given)), "it beside tools", "one of them")
        found = {name: getattr(self, name) for name in Chat.__struct_fields__}
        found["messages"] = list(_messages(self.messages))
        if self.functions is not None:
            found["parallel_tool_calls"] = False
            found["tools"] = [
                Placed(f"functions[{number}]", {"type": "function", "function": one})
                for number, one in enumerate(self.functions)
            ]
        if (call := self.function_call) is not None:
            found["tool_choice"] = Chosen(call) if isinstance(call, Named) else call
        return Chat(**found)


def _is_of(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "function" or message.get("function_call") is not None


def _messages(messages: Sequence[Json]) -> Iterator[Json]:
    """Each call has an id, which the output after it refers to: nine digits, for Mistral's chat
    templates take no other.
    """
    call_id = ""
    for number, message in enumerate(messages):
        if not _is_of(message):
            yield message
        elif message.get("role") == "function":
            yield {**message, "role": "tool", "tool_call_id": call_id}
        else:
            call_id = f"{number:09}"
            own = {name: value for name, value in message.items() if name != "function_call"}
            call = {"id": call_id, "type": "function", "function": message["function_call"]}
            yield {**own, "tool_calls": [call]}
