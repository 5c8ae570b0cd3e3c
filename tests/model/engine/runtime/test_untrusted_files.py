"""A model's files that no model has are refused by name before anything opens or follows them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.regular_file import MOST_JSON_BYTES
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.untrusted_files import check_files
from hf_triton.runtime.weights.weight_loading import load_config, load_model
from tests.support.served_models import served_model
from tests.support.triton import DEMO_MODEL

INSIDE = "allowed: a path within the model's folder"
BUILT_IN = (
    "allowed: eager, sdpa, flex_attention, grouped_mm, batched_mm; others run code of the Hub "
    "(trust_remote_code)"
)

OTHER = "audio_tokenizer_name_or_path"
NONE = "allowed: none; it loads another model of the Hub (trust_remote_code)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(DEMO_MODEL, tmp_path / "model")
    return tmp_path / "model"


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def refusal(folder: Path, *, trusts_code: bool = False) -> str:
    with pytest.raises(LoadError) as raised:
        check_files("org/name", folder, trusts_code=trusts_code)
    return str(raised.value).removeprefix("org/name: ")


CONFIG, INDEX = "config.json", "model.safetensors.index.json"
PROCESSOR, TOKENIZER = "preprocessor_config.json", "tokenizer_config.json"


@pytest.mark.threat("model-file-kinds", "code-by-other-keys")
@pytest.mark.parametrize(
    "name, key, value, allowed",
    [
        (CONFIG, "attn_implementation", "someone/kernel", BUILT_IN),
        (CONFIG, "text_config._attn_implementation.", "a/b@v1:f", BUILT_IN),
        (CONFIG, "experts_implementation", "deepgemm", BUILT_IN),
        (CONFIG, "configuration_files", ["../config.4.0.0.json"], INSIDE),
        (CONFIG, "transformers_weights", "/w.safetensors", INSIDE),
        (TOKENIZER, "fast_tokenizer_files", ["/x/tokenizer.4.0.json"], INSIDE),
        (PROCESSOR, "class_info_file", "/dev/zero", INSIDE),
        (INDEX, "weight_map.a", "../../w.safetensors", INSIDE),
        (INDEX, "weight_map.a", "/w.safetensors", INSIDE),
        ("pytorch_model.bin.index.json", "weight_map.a", "../w.bin", INSIDE),
    ],
)
def test_what_a_key_may_not_say_is_refused_by_name(
    folder: Path, name: str, key: str, value: Any, allowed: str
) -> None:
    content = value
    for part in reversed(key.split(".")):
        content = {part: content}
    write(folder, name, content)
    got = value[-1] if isinstance(value, list) else value
    assert refusal(folder) == f"{name}: {key}: got {got!r}, {allowed}"


@pytest.mark.threat("model-file-kinds", "code-by-other-keys")
@pytest.mark.parametrize(
    "name, content, said",
    [
        ("generation_config.json", "not JSON", "Expecting value: line 1 column 1 (char 0)"),
        (CONFIG, "[" * 100_000, "nested too deeply"),
        (
            "processor_config.json",
            {"audio_tokenizer": {OTHER: "/other"}},
            f"audio_tokenizer.{OTHER}: got '/other', {NONE}",
        ),
    ],
)
def test_what_a_file_may_not_say_is_refused_by_name(
    folder: Path, name: str, content: Any, said: str
) -> None:
    write(folder, name, content)
    assert refusal(folder) == f"{name}: {said}"


@pytest.mark.parametrize(
    "name, content",
    [
        ("config.json", {"attn_implementation": None, "_attn_implementation": "flash_attention_2"}),
        ("config.json", "{not json"),
        ("tokenizer_config.json", {"model_max_length": 10**30, "name_or_path": "/home/me/model"}),
        ("model.safetensors.index.json", {"weight_map": {"a": "part/model-1.safetensors"}}),
        ("results.json", {"attn_implementation": "someone/kernel"}),
    ],
)
def test_what_models_say_is_let_through(folder: Path, name: str, content: Any) -> None:
    write(folder, name, content)
    check_files("org/name", folder, trusts_code=False)


@pytest.mark.threat("code-by-other-keys")
def test_code_of_the_hub_is_models_yamls_to_trust(folder: Path) -> None:
    write(folder, "config.json", {"attn_implementation": "someone/kernel"})
    check_files("org/name", folder, trusts_code=True)
    write(folder, "config.json", {"transformers_weights": "../w.safetensors"})
    assert refusal(folder, trusts_code=True).startswith("config.json: transformers_weights: got")


@pytest.mark.threat("model-file-kinds")
@pytest.mark.parametrize("name", ["config.json", "x/y.bin"])
@pytest.mark.parametrize(
    "kind, said",
    [
        ("pipe", "it is a pipe, expected a regular file"),
        ("socket", "it is a socket, expected a regular file"),
        ("device", "it is a link to a place outside the model's folder"),
        ("link", "it is a link to a place outside the model's folder"),
        ("circle", "Symlink loop"),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused_unopened(
    tmp_path: Path, name: str, kind: str, said: str
) -> None:
    path = tmp_path / "model" / name
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        (tmp_path / "secret").write_text("{}")
        target = {"device": "/dev/zero", "link": "../secret", "circle": path.name}[kind]
        path.symlink_to(tmp_path / "secret" if kind == "link" else target)
    assert refusal(tmp_path / "model").startswith(f"{name}: {said}")


@pytest.mark.threat("model-file-kinds")
def test_a_link_to_a_folder_elsewhere_is_refused(folder: Path) -> None:
    (folder / "1_Pooling").symlink_to("/etc")
    assert refusal(folder) == "1_Pooling: it is a link to a place outside the model's folder"


def test_links_within_the_folder_and_to_the_caches_blobs_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b/snapshots/c0ffee"
    folder.mkdir(parents=True)
    blobs = tmp_path / "models--a--b/blobs"
    blobs.mkdir()
    (blobs / "ab12").write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/ab12")
    (folder / "same.json").symlink_to("config.json")
    (folder / "missing.json").symlink_to("nowhere")
    (folder / ".git").mkdir()
    os.mkfifo(folder / ".git/fsmonitor")
    check_files("org/name", folder, trusts_code=False)


@pytest.mark.threat("model-file-kinds")
@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "vocab.txt"])
def test_a_file_of_a_size_that_no_model_has_is_refused_unread(folder: Path, name: str) -> None:
    with (folder / name).open("wb") as file:
        file.truncate(MOST_JSON_BYTES + 1)
    assert refusal(folder) == f"{name}: it is larger than 64 MiB"


def loaded(folder: Path, **config: Any) -> Any:
    """The demo model with changes to its configuration, as it is served."""
    import transformers

    from hf_triton.runtime.devices.device import Placement

    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    served = served_model(folder.parent / "tiny", model="../model", local=True)
    read = load_config(served, model_files(served))
    auto_class = transformers.AutoModelForCausalLM
    return load_model(served, folder, auto_class, read, Placement("cpu", {"": "cpu"}))


@pytest.mark.threat("oversized-configurations")
@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 9000},
        {"hidden_size": 6 * 2**18},
        {"vocab_size": 2**24},
        {"intermediate_size": 2**22},
    ],
)
def test_a_model_many_times_larger_than_its_weights_is_refused_before_it_is_made(
    folder: Path, config: dict[str, Any]
) -> None:
    with pytest.raises(LoadError) as raised:
        loaded(folder, **config)
    num_bytes = (DEMO_MODEL / "model.safetensors").stat().st_size
    assert str(raised.value) == (
        f"{folder}: config.json: the model that it describes is many times larger than its "
        f"weights, which are {num_bytes} bytes"
    )


@pytest.mark.threat("code-by-other-keys")
def test_flash_attention_of_a_config_is_left_out_with_one_line(
    folder: Path, log_lines: list[str]
) -> None:
    model = loaded(folder, _attn_implementation="flash_attention_2")
    assert model.config._attn_implementation == "sdpa"
    assert log_lines == [
        "I tiny: flash_attention_2 of config.json is ignored: models.yaml decides what code runs"
    ]


def test_as_many_positions_as_a_model_may_have_cost_nothing(folder: Path) -> None:
    assert loaded(folder, max_position_embeddings=10_485_760).config.vocab_size


def rewritten(folder: Path, change: Callable[[dict[str, Any], bytes], bytes]) -> None:
    """The weights' file with what ``change`` makes of its header and its data."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    path.write_bytes(change(json.loads(content[8 : 8 + size]), content[8 + size :]))


def file_of(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.threat("oversized-configurations")
@pytest.mark.parametrize(
    "change, said",
    [
        (lambda header, data: file_of(header, data[:-1]), "incomplete metadata"),
        (lambda header, data: struct.pack("<Q", 2**63) + b"{}", "header too large"),
    ],
)
def test_weights_that_are_not_whole_are_refused_by_the_name_of_their_file(
    folder: Path, change: Callable[[dict[str, Any], bytes], bytes], said: str
) -> None:
    rewritten(folder, change)
    with pytest.raises(LoadError, match=f"/model: model.safetensors: .*{said}"):
        loaded(folder)
