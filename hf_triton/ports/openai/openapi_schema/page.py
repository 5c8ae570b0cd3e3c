"""The OpenAPI document as one HTML page without scripts or anything from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]
_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>hf-triton</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark; }
code, h2 { font-family: ui-monospace, monospace; }
h2 { font-size: 1rem; margin: 1.5rem 0 0; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top; }
</style>
<h1>hf-triton: OpenAI's API</h1>
<p>The same as <a href="openapi.json">OpenAPI 3.1</a>. Where keys are needed they are sent as
<code>Authorization: Bearer KEY</code>; the models are at <a href="v1/models">/v1/models</a>.</p>
"""


def page(document: Json) -> str:
    """The page."""
    routes = [
        _route(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    types = [
        f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(schema.get("description", ""))}</p>'
        + _fields(schema)
        for name, schema in document["components"]["schemas"].items()
    ]
    return "\n".join((_HEAD, *routes, "<h1>Bodies and answers</h1>", *types, "</html>"))


def _route(path: str, method: str, operation: Json) -> str:
    parts = [f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}</p>"]
    for kind, content in operation.get("requestBody", {"content": {}})["content"].items():
        parts.append(f"<p>Body, {escape(kind)}: {_kind(content['schema'])}</p>")
    answers = operation["responses"]["200"]["content"]
    told = ", ".join(f"{escape(kind)}: {_kind(one['schema'])}" for kind, one in answers.items())
    return "".join((*parts, f"<p>200, {told}</p>"))


def _fields(schema: Json) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><th><code>{escape(name)}</code></th><td>{_kind(one)}</td>"
        f"<td>{'required' if name in required else ''}</td></tr>"
        for name, one in schema.get("properties", {}).items()
        if one != {"enum": [None]}
    ]
    return f"<table>{''.join(rows)}</table>"


def _kind(schema: Json) -> str:
    """What a schema takes, in few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema:
        return " or ".join(escape(json.dumps(one)) for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(schema.get("type", "anything"))
