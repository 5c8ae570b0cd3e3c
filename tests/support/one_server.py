"""The one server that all tests share which neither end it nor count what it holds.

The models of MODELS_YAML are in its repository, and each is loaded when a file of tests first wants
it, so that every model is loaded once. Files that say ``one_server`` run in one process, see
tests/conftest.py.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_triton.cli.verbs.generate import generate
from tests.scenarios import served_models
from tests.support.tiny_whisper import tiny_whisper
from tests.support.triton import DEMO_MODEL, Triton, load_models, running

LONGEST_TEXT = 30_000  # tokens that the model ``tight`` writes where it is not stopped
_MORE_MODELS = """\
  - name: embedding
    task: feature-extraction
    model: {embedding}
  - name: see
    task: image-text-to-text
    model: {seeing}
    streaming: false
  - name: whisper
    task: automatic-speech-recognition
    model: {whisper}
    options: {{kv_cache_gib: 0.01}}
  - name: thorough
    model: {thorough}
    options: {{max_num_seqs: 1}}
"""
# A template of Hermes' and Qwen's kind.
_TOOLS_TEMPLATE = """\
{%- for tool in tools or () -%}{{- "Tool: " + tool.function.name + "\\n" -}}{%- endfor -%}
{%- for message in messages -%}
    {%- for call in message.tool_calls or () -%}
        {{- "<tool_call>" + call.function.name + call.function.arguments.city + "</tool_call>" -}}
    {%- endfor -%}
    {{- message.role + ": " + (message.content or "") + "\\n" -}}
{%- endfor -%}
{{- "Assistant:" if add_generation_prompt -}}
"""
# Looks from each message through all later ones, as gpt-oss' does: time with the square of a chat.
_THOROUGH_TEMPLATE = """\
{%- for message in messages -%}
    {%- for later in messages[loop.index:] -%}{%- if later.role == "tool" -%}{%- endif -%}
    {%- endfor -%}
    {{- message.content -}}
{%- endfor -%}
"""


class OneServer:
    """A running server, whose models are loaded as they are wanted and stay."""

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._loaded = set[str]()

    def with_models(self, *names: str) -> Triton:
        """The server, with these models ready."""
        new = set(names) - self._loaded
        load_models(self._triton.server, sorted(new), 900.0)
        self._loaded |= new
        return self._triton


@contextlib.contextmanager
def one_server(folder: Path) -> Iterator[OneServer]:
    """Starts it, without a model, and checks in the end that it stops gracefully."""
    config = folder / "models.yaml"
    config.write_text(_models_yaml(folder), encoding="utf-8")
    generate(config, folder / "model_repository")
    with pytest.MonkeyPatch.context() as patch:
        # Small models side by side: more threads than cores would be several times slower.
        patch.setenv("OMP_NUM_THREADS", "1")
        with running(folder / "model_repository") as triton:
            yield OneServer(triton)


def _models_yaml(folder: Path) -> str:
    """The scenarios' models, ``tight`` with tools, and some more."""
    tight = f"  - name: tight\n    model: {_long_model(folder / 'tools', _TOOLS_TEMPLATE)}\n"
    models = served_models.MODELS_YAML.replace("  - name: tight\n", tight)
    return models + _MORE_MODELS.format(
        embedding=DEMO_MODEL.parent / "embedding",
        seeing=DEMO_MODEL.parent / "seeing",
        whisper=tiny_whisper(folder / "whisper_model"),
        thorough=_long_model(folder / "thorough", _THOROUGH_TEMPLATE),
    )


def _long_model(folder: Path, chat_template: str) -> Path:
    """The demo model for texts that take a minute."""
    shutil.copytree(DEMO_MODEL, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_position_embeddings": LONGEST_TEXT + 10}))
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    return folder
