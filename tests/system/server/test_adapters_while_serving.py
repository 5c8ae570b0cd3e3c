"""apply and requests give a running model other adapters, beside streams that go on, on a real
server.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hf_triton.serving.apply.model_update import ApplyOptions
from hf_triton.serving.apply.session import Session
from hf_triton.serving.apply.target import Target
from hf_triton.tritonserver.stubs import find_stubs
from tests.support.callers import asking
from tests.support.demo_adapter import write_adapter
from tests.support.triton import ADMIN_KEY, DEMO_MODEL, Triton, eventually, post_for_events, serving
from tests.unit.openai_api.conftest import openai_port

PROMPT, LONG = "I am going", 200


def models_yaml(**adapters: Path) -> str:
    listed = ", ".join(f"{{name: {name}, model: {path}}}" for name, path in adapters.items())
    options = "{max_model_len: 512}"
    return f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
    options: {options}
    adapters: [{listed}]
    adapters_from: [{next(iter(adapters.values())).parent}]
    instance_group: [{{kind: KIND_CPU, count: 2}}]
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters, and one of another rank than it says."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {name: write_adapter(folder / name, seed) for seed, name in enumerate(("a", "b", "c"))}
    rank = write_adapter(folder / "rank", r=3)
    return {**made, "rank": rank}


@pytest.fixture(scope="module")
def triton(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with serving(models_yaml(one=folders["a"]), tmp_path_factory.mktemp("served")) as running:
        yield running


def apply(triton: Triton, capsys: pytest.CaptureFixture[str], **adapters: Path) -> tuple[int, str]:
    repository = triton.server.repository
    config = repository.parent / "models.yaml"
    config.write_text(models_yaml(**adapters), encoding="utf-8")
    code = Session(repository, Target(triton.server.api, "it"), ApplyOptions()).apply(config)
    return code, "".join(capsys.readouterr())


def text(triton: Triton, name: str | None, length: int = 8) -> str:
    named = {} if name is None else {"lora_name": name}
    answer = triton.generate("demo", text_input=PROMPT, max_tokens=length, ignore_eos=True, **named)
    return str(answer.body.get("text_output", answer.body))


def engines(triton: Triton) -> set[int]:
    return {stub.pid for stub in find_stubs(triton.server.pid) if stub.model == "demo_stream"}


def streamed(triton: Triton, name: str) -> str:
    body = {"text_input": PROMPT, "max_tokens": LONG, "ignore_eos": True, "lora_name": name}
    _, events = post_for_events(triton.url("demo", "generate_stream"), body)
    return "".join(str(one.get("text_output", one.get("error"))) for one in events)


@contextlib.contextmanager
def streams(triton: Triton, name: str) -> Iterator[Callable[[], set[str]]]:
    """Three callers ask ``name`` again and again; yields what tells the different answers."""
    with asking(*[partial(streamed, triton, name)] * 3) as found:
        assert eventually(lambda: any(found))
        yield lambda: set(itertools.chain(*found))


def changed(
    triton: Triton, capsys: pytest.CaptureFixture[str], was: Path, **adapters: Path
) -> tuple[str, set[str]]:
    """Applies, and returns what adapter ``one`` answered before, and all that callers got who asked
    it meanwhile and after: what had begun before the change, and where ``one`` changes what began
    after it.
    """
    before = text(triton, "one", LONG)
    with streams(triton, "one") as texts:
        code, said = apply(triton, capsys, **adapters)
        assert code == 0, said
        assert "demo_stream: serves the new list of adapters, nothing was loaded" in said
        if adapters.get("one") != was:
            assert eventually(lambda: len(texts()) > 1)
    return before, texts()


def test_adapters_come_change_and_go_beside_streams(
    triton: Triton, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = (folders[name] for name in "abc")
    processes = engines(triton)
    assert len(processes) == 2
    plain, first = text(triton, None), text(triton, "one")
    whole, streamed = changed(triton, capsys, a, one=a, two=b)
    assert streamed == {whole}
    second = text(triton, "two")
    whole, streamed = changed(triton, capsys, a, one=c, two=b)
    assert streamed == {whole, text(triton, "one", LONG)}
    third = text(triton, "one")
    assert len({plain, first, second, third}) == 4
    whole, streamed = changed(triton, capsys, c, two=b)
    assert whole in streamed
    refused = streamed - {whole}
    assert any("lora_name: got one, allowed: two" in one for one in refused)
    assert all("lora_name: " in one for one in refused), refused  # it went before they began
    assert (text(triton, None), text(triton, "two")) == (plain, second)
    assert apply(triton, capsys, one=c, two=b)[0] == 0
    assert (text(triton, "one"), text(triton, "two")) == (third, second)
    assert engines(triton) == processes


def test_an_adapter_that_was_changed_in_place_is_read_anew(
    triton: Triton, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = shutil.copytree(folders["a"], folders["a"].with_name("mine"))
    assert apply(triton, capsys, one=mine, two=folders["c"])[0] == 0
    assert text(triton, "one") != text(triton, "two")
    for file in folders["c"].iterdir():
        shutil.copy(file, mine)
    assert apply(triton, capsys, one=mine, two=folders["c"])[0] == 0
    assert text(triton, "one") == text(triton, "two")


def sent(url: str, **body: object) -> str:
    """Sends a request with the admin key, without a body as a GET; returns its answer."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"hf-triton-admin-key": ADMIN_KEY})
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(response.read().decode())


def test_a_request_loads_one_that_outlives_a_load_of_the_model_until_apply_takes_it_away(
    triton: Triton, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert apply(triton, capsys, one=folders["a"], two=folders["b"])[0] == 0
    expected = text(triton, "two", LONG)
    assert apply(triton, capsys, one=folders["a"])[0] == 0
    before = text(triton, "one", LONG)
    with openai_port(triton, None) as url, streams(triton, "one") as texts:
        said = sent(f"{url}/v1/load_lora_adapter", lora_name="new", lora_path=str(folders["b"]))
        assert said == "Success: LoRA adapter 'new' added successfully."
        assert '"demo:new"' in sent(f"{url}/v1/models")
        asked = {"prompt": PROMPT, "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
        answer = json.loads(sent(f"{url}/v1/completions", model="new", **asked))
        assert answer["choices"][0]["text"] == expected
    assert texts() == {before}
    processes = engines(triton)
    assert triton.server.api.load("demo_stream") is None
    assert eventually(lambda: engines(triton).isdisjoint(processes))
    assert text(triton, "new", LONG) == expected
    code, said = apply(triton, capsys, one=folders["a"])
    assert (code, "adapters.json\n" in said) == (0, True)
    assert "lora_name: got new, allowed: one" in text(triton, "new")
