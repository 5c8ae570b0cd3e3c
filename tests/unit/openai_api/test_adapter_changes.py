"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: who may load what into which model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generator.render.manifest import with_digest
from generator.repository import writing
from generator.repository.compare import compare
from hf_triton.ports.openai import adapters
from hf_triton.ports.retries import Model as Told
from tests.support.adapters_process import Process
from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Reply, Starter, Translator
from tests.unit.openai_api.fake_triton import Model

KEY = "the-admin-key"
LISTED = [{"name": "sql", "model": "org/sql", "local": False, "revision": None}]


def write(repository: Path, name: str, *allowed: dict[str, Any]) -> None:
    files = {
        "config.pbtxt": f'name: "{name}"'.encode(),
        "1/adapters.json": json.dumps(LISTED).encode(),
        **({"1/adapters_from.json": json.dumps(allowed).encode()} if allowed else {}),
    }
    writing.apply(compare(repository / name, with_digest(files)))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Folders of adapters, some of which lead out of the one that is allowed."""
    for name in ("allowed/good", "allowed/broken", "allowed/half", "elsewhere"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
    (tmp_path / "allowed" / "empty").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "adapter_model.safetensors").write_text("")
    (tmp_path / "allowed" / "half" / "adapter_model.safetensors").symlink_to(
        tmp_path / "elsewhere" / "adapter_model.safetensors"
    )
    return tmp_path


@pytest.fixture
def port(starter: Starter, work: Path) -> Iterator[Translator]:
    """``m`` takes adapters from a folder and the Hub, ``other`` from models.yaml alone; the process
    of ``m`` can't serve those of a folder named broken.
    """
    repository = work / "repository"
    repository.mkdir()
    on_hub = ({"model": model, "local": False} for model in ("org/*", "some/one"))
    write(repository, "m_stream", {"model": "../../allowed", "local": True}, *on_hub)
    write(repository, "other_stream")
    models = (Model(name, "engine", adapters="sql") for name in ("m_stream", "other_stream"))
    found = starter.api(*models, repository=repository, admin_key=KEY)
    found.headers = {"hf-triton-admin-key": KEY}
    process = Process(repository, 0, lambda content: "too large" if b"broken" in content else "")
    yield found
    process.end()


def load(port: Translator, name: str, path: Path | str, **more: object) -> Reply:
    return port.post("/v1/load_lora_adapter", lora_name=name, lora_path=str(path), **more)


def unload(port: Translator, name: str) -> Reply:
    return port.post("/v1/unload_lora_adapter", lora_name=name)


def names(port: Translator) -> set[str]:
    return {one["id"] for one in port.get("/v1/models").body["data"]}


def listed(work: Path) -> list[dict[str, Any]]:
    path = work / "repository" / "m_stream" / "1" / "adapters.json"
    found: list[dict[str, Any]] = json.loads(path.read_bytes())
    return found


def test_one_is_asked_for_as_soon_as_it_is_loaded_and_no_more_once_unloaded(
    port: Translator, work: Path
) -> None:
    before = names(port)
    reply = load(port, "new", work / "allowed" / "good", lora_int_id=3)
    assert (reply.status, reply.text) == (200, "Success: LoRA adapter 'new' added successfully.")
    assert names(port) == before | {"m:new"}
    assert port.completion(model="new").status == 200
    assert port.triton.seen[-1]["lora_name"] == "new"
    assert load(port, "m:hub", "org/one@v2").status == 200
    assert [{**one, "loaded_at": 0} for one in listed(work)[1:]] == [
        {"name": name, "model": model, "local": local, "revision": revision, "loaded_at": 0}
        for name, model, local, revision in (
            ("new", str(work / "allowed" / "good"), True, None),
            ("hub", "org/one", False, "v2"),
        )
    ]
    assert unload(port, "m:new").text == "Success: LoRA adapter 'm:new' removed successfully."
    assert unload(port, "hub").status == 200
    assert (names(port), listed(work)) == (before, LISTED)
    assert port.completion(model="new").status == 404


def test_one_is_read_anew_once_it_is_unloaded(port: Translator, work: Path) -> None:
    path = work / "allowed" / "good"
    assert load(port, "new", path).status == 200
    reply = load(port, "NEW", path)
    assert (reply.status, reply.error["param"]) == (400, "lora_name")
    assert "'NEW' is loaded already; unload it first" in reply.error["message"]
    first = listed(work)[1]
    reply = load(port, "new", path, load_inplace=True)
    assert (reply.status, reply.error["param"]) == (400, "load_inplace")
    assert unload(port, "new").status == load(port, "new", path, load_inplace=False).status == 200
    assert listed(work)[1]["loaded_at"] > first["loaded_at"]


def test_those_of_models_yaml_are_left_alone(port: Translator, work: Path) -> None:
    for reply in (
        load(port, "m:sql", work / "allowed" / "good"),
        unload(port, "m:sql"),
    ):
        assert reply.status == 400
        assert "'sql' is in models.yaml: change it there" in reply.error["message"]
    assert listed(work) == LISTED


@pytest.mark.threat("adapters-by-request")
@pytest.mark.parametrize("key", [None, "", "the-admin-kez", "the-admin-key2"])
def test_without_the_admin_key_nothing_is_read(
    port: Translator, work: Path, key: str | None
) -> None:
    port.headers = {} if key is None else {"hf-triton-admin-key": key}
    replies = [load(port, "new", work / "allowed" / "good"), unload(port, "sql")]
    replies.append(port.send("POST", "/v1/load_lora_adapter", b"no JSON"))
    for reply in replies:
        assert reply.status == 403
        assert "needs the header hf-triton-admin-key" in reply.error["message"]


@pytest.mark.threat("adapters-by-request")
@pytest.mark.parametrize(
    "path",
    [
        *("elsewhere", "allowed/../elsewhere", "allowed/link", "allowed/half", "allowed2", ""),
        *("some/other", "som/one", "org"),
    ],
)
def test_nothing_is_loaded_from_where_models_yaml_does_not_allow_it(
    port: Translator, work: Path, path: str
) -> None:
    on_hub = path in ("some/other", "som/one", "org")
    reply = load(port, "new", path if on_hub else work / path)
    assert reply.status == 403
    assert reply.error["message"] == (
        "lora_path: not allowed by adapters_from of the model in models.yaml: "
        f"{work / 'allowed'}, org/*, some/one"
    )
    assert listed(work) == LISTED


@pytest.mark.parametrize(
    "name, path, status, message",
    [
        ("n", "allowed/broken", 400, "too large; the previous adapters stay in use"),
        ("n", "allowed/empty", 404, "lora_path: no adapter there: no adapter_config.json in "),
        ("n", "allowed/none", 404, "lora_path: no adapter there: no adapter_config.json in "),
        ("n", "~/x", 400, "lora_path: got something else, allowed: a folder's absolute path"),
        ("n", "org/one@", 400, "lora_path: got something else, allowed: a folder's absolute"),
        ("n", "s3://org/one", 400, "lora_path: got something else, allowed: a folder's"),
        ("a/b", "allowed/good", 400, "lora_name: got another name, allowed: NAME or MODEL:NAME"),
        ("m", "allowed/good", 400, "lora_name: got the name of a model, m, allowed: MODEL:NAME"),
        ("none:n", "allowed/good", 404, "model: 'none' does not exist or is not ready"),
        ("other:n", "allowed/good", 403, "lora_name: model 'other' takes no adapters by requests"),
    ],
)
def test_what_is_wrong_is_told(
    port: Translator, work: Path, name: str, path: str, status: int, message: str
) -> None:
    reply = load(port, name, work / path if path.startswith("allowed") else path)
    assert (reply.status, reply.error["message"][: len(message)]) == (status, message)
    assert listed(work) == LISTED


def test_no_more_are_loaded_than_a_model_may_have(
    port: Translator, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "MAX_ADAPTERS", 2)
    path = work / "allowed" / "good"
    assert load(port, "m:first", path).status == 200
    reply = load(port, "m:second", path)
    assert (reply.status, "the model has 2 adapters" in reply.error["message"]) == (400, True)


def test_a_name_of_several_models_or_of_none_is_told(port: Translator) -> None:
    reply = unload(port, "sql")
    assert reply.status == 400
    assert reply.error["message"].endswith("allowed: m:sql, other:sql")
    assert unload(port, "none").status == unload(port, "m:none").status == 404


def test_while_somebody_else_writes_it_is_to_be_tried_again(port: Translator, work: Path) -> None:
    with writing.locked(work / "repository"):
        reply = load(port, "new", work / "allowed" / "good")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert load(port, "new", work / "allowed" / "good").status == 200


def test_a_model_that_is_down_is_to_be_tried_again(port: Translator, work: Path) -> None:
    port.tell(m_stream=Told(is_coming=True))
    assert eventually(lambda: load(port, "m:new", work / "allowed" / "good").status == 503)
    assert listed(work) == LISTED
