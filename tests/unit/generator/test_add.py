"""``hf-triton add``: the entry that it writes into models.yaml, and that nothing else changes."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from generator.models_yaml.reading import load
from generator.spec.task_folders import find_tasks
from generator.spec.task_names import Fit, fits_of_files
from hf_triton.cli import main as cli
from hf_triton.cli.places import Places
from tests.support.triton import free_ports
from tests.unit.generator.conftest import Run

ENTRY = "- name: tiny\n    task: fill-mask\n    model: ./tiny\n"
HEAD = f"models:\n  {ENTRY}"
NEW = "  - name: chat\n    task: text-generation\n    model: org/chat\n"
IN_LINE = "{name: chat, task: text-generation, model: org/chat}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model in ``tiny``."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "tiny", architectures=["BertForMaskedLM"])
    return tmp_path


def save(folder: Path, **config: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


# What the file was => what it becomes.
FILES = {
    "a block": f"{HEAD}[[ => {NEW}]]",
    "lists as deep as their key": (
        "models:\n- name: tiny\n  task: fill-mask\n  model: ./tiny\n"
        "[[ => - name: chat\n  task: text-generation\n  model: org/chat\n]]"
        "server: {max_body_mib: 8}\n"
    ),
    "comments of the last entry, of the next key, and none of these": (
        f"# mine\n{HEAD}\n    # dtype: auto\n      # deeper\n[[ => {NEW}]]\n  # of no entry\n"
        "# of the server\nserver:   {max_body_mib: 8}   # small\n"
    ),
    "other spaces and quotes": (
        "models:\n    -   name:  'tiny'   # a\n        task: \"fill-mask\"\n        model: >-\n"
        "          ./tiny\n[[ =>     - name: chat\n      task: text-generation\n"
        "      model: org/chat\n]]"
    ),
    "no newline at the end": f"{HEAD[:-1]}[[ => \n{NEW[:-1]}]]",
    "lines that end as on Windows": f"{HEAD}[[ => {NEW}]]".replace("\n", "\r\n"),
    "one line": (
        f"models: [{{name: tiny, task: fill-mask, model: ./tiny}}[[ => , {IN_LINE}]], ]  # short\n"
    ),
    "JSON": (
        '{"models": [\n  {"name": "tiny", "task": "fill-mask", "model": "./tiny"}'
        f"[[ => , {IN_LINE}]]\n]}}\n"
    ),
    "JSON without models": f'{{"server": {{}}[[ => , models: [{IN_LINE}]]]}}\n',
    "an empty list": f"models: [[[] => [{IN_LINE}]]]\n",
    "a key without a value": f"models:[[ =>  [{IN_LINE}]]]\n# - name: a\n",
    "no such key": f"defaults: {{dtype: float32}}\n[[ => models:\n{NEW}]]",
    "comments alone": f"# models\n[[ => models:\n{NEW}]]",
}


@pytest.mark.parametrize("marked", FILES.values(), ids=FILES)
def test_nothing_but_the_entry_is_new(marked: str, home: Path, run: Run) -> None:
    before, after = (
        re.sub(r"\[\[(.*?) => (.*?)\]\](?!\])", kept, marked, flags=re.DOTALL)
        for kept in (r"\1", r"\2")
    )
    path = home / "models.yaml"
    path.write_bytes(before.encode())
    path.chmod(0o640)
    code, out, err = run("add", "org/chat", "--task", "text-generation")
    assert (code, path.read_bytes().decode()) == (0, after), err
    line = next(n for n, text in enumerate(after.splitlines(), 1) if "chat" in text)
    assert out == f"models.yaml:{line}: 'chat' is text-generation\n"
    assert err == "hf-triton: next: hf-triton serve\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(one.name for one in home.iterdir()) == ["models.yaml", "tiny"]


def test_a_missing_file_is_made_and_names_its_schema(home: Path, run: Run) -> None:
    code, out, _ = run("add", "tiny", "--config", "new/models.yaml")
    assert code == 0
    assert out == (
        "new/models.yaml:4: 'tiny' is fill-mask, by its files (BertForMaskedLM); "
        "--task feature-extraction takes that\n"
    )
    text = (home / "new/models.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=models.schema.json\n")
    (spec,) = load(home / "new/models.yaml")
    assert (spec.name, spec.task, spec.model.folder) == ("tiny", "fill-mask", home / "tiny")
    assert text.endswith("    model: ../tiny\n")


@pytest.mark.parametrize(
    "model, name",
    [
        ("org/Llama-3.2_1B", "Llama-3.2_1B"),
        ("./a b..c (é)", "a-b-c"),
        ("./模型", "model"),
        (f"./{'x' * 200}", "x" * 121),
        ("org/chat-GGUF/Q4/chat.Q4_K_M.gguf", "chat.Q4_K_M"),
    ],
)
def test_the_name_is_made_from_the_models(model: str, name: str, home: Path, run: Run) -> None:
    if model.startswith("./"):
        save(home / model, architectures=["LlamaForCausalLM"])
    assert run("add", model, "--task", "text-generation")[0] == 0
    (spec,) = load(home / "models.yaml")
    assert spec.name == name
    is_file = model.endswith(".gguf")
    assert (spec.gguf_file, spec.model.text) == (
        ("Q4/chat.Q4_K_M.gguf", "org/chat-GGUF") if is_file else (None, spec.model.text)
    )


REFUSED = {
    "./nothing": "got './nothing', a local path, but {home}/nothing is no such folder",
    "./empty": "./empty has no config.json: name the folder of a model as transformers saves it",
    "./adapter": "./adapter is an adapter (adapter_config.json), not a whole model: set model to",
    "./quants": "./quants has weights only as GGUF: choose a file with gguf_file: q4.gguf, or in",
    "./odd": "./odd: its task can't be found out (OddForDreams): say it with --task, one of audio-",
    "./broken": "./broken: its files can't be read (",
    "./list": "./list: its files can't be read (",
    "weights.bin": "weights.bin is a file: name its folder, or a .gguf file",
    "no.gguf": "no.gguf is not a GGUF file: it does not begin with 'GGUF'",
    "s3://bucket/model": "s3://bucket/model: its task can't be found out: say it with --task, one",
    "./no/such.gguf": "got './no/such.gguf', a local file, but {home}/no/such.gguf can't be",
    "./tiny": "models.yaml:2: ./tiny stands there already, as 'tiny'",
    "./tiny/../tiny/": "models.yaml:2: ./tiny stands there already, as 'tiny'",
    "./other/Tiny": "models.yaml:2: 'tiny' is a model's name already: choose another with --name",
    "./tiny --name=a/b": "--name: got 'a/b', expected letters (a-z, A-Z), digits, and single _ -",
    "./tiny --task=fill-masc": "--task: unknown task 'fill-masc'; did you mean 'fill-mask'?",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_can_not_be_added_is_told_and_nothing_is_written(
    arguments: str, home: Path, run: Run
) -> None:
    for name in ("empty", "adapter", "quants", "broken", "list", "other"):
        (home / name).mkdir()
    (home / "adapter/adapter_config.json").write_text("{}")
    (home / "quants/q4.gguf").write_bytes(b"GGUF")
    (home / "broken/config.json").write_text("{")
    (home / "list/config.json").write_text("[]")
    (home / "weights.bin").write_bytes(b"")
    (home / "no.gguf").write_bytes(b"x")
    save(home / "odd", architectures=["OddForDreams"])
    save(home / "other/Tiny", architectures=["BertForMaskedLM"])
    (home / "models.yaml").write_text(HEAD)
    code, out, err = run("add", *arguments.split())
    assert (code, out) == (2 if "s3:" in arguments or "=" in arguments else 1, "")
    assert err.startswith("hf-triton: " + REFUSED[arguments].format(home=home))
    assert (home / "models.yaml").read_text() == HEAD


@pytest.mark.parametrize(
    "text, told",
    [
        (f"{HEAD}    dtype: fp61\n", ":5:12: models[0].dtype: got 'fp61', expected one of"),
        ("models: 3\n", ":1:9: models: got 3, expected a list with an entry for every model"),
        ("- name: tiny\n", ":1:1: got a list, expected a map with 'models:'"),
        ("models: [\n", ":2:1: not valid YAML: while parsing a flow"),
        ("models: &a []\nserver: *a\n", ":2:9: server: aliases (*a) are not supported"),
    ],
)
def test_mistakes_of_the_file_come_first(text: str, told: str, home: Path, run: Run) -> None:
    (home / "models.yaml").write_text(text)
    code, _, err = run("add", "org/chat", "--task=text-generation")
    assert (code, f"models.yaml{told}" in err) == (1, True), err
    assert (home / "models.yaml").read_text() == text


def test_a_killed_write_leaves_the_old_file(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "models.yaml").write_text(HEAD)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", kill)
    assert run("add", "org/chat", "--task=text-generation")[0] == 130
    assert (home / "models.yaml").read_text() == HEAD


def test_generate_works_on_the_file(home: Path, run: Run) -> None:
    assert run("add", "./tiny", "--task", "image-classification")[0] == 0
    assert run("validate") == (0, "models.yaml: 1 model, no mistakes\n", "")
    assert run("generate")[0] == 0
    values = json.loads((home / "model_repository/tiny/1/model.json").read_text())
    assert values["options"]["pipeline"] == "image-classification"
    assert values["model"] == "../../tiny"


IMAGES, SOUNDS = {"image_processor_type": "X"}, {"sampling_rate": 16000}
MODELS: Mapping[str, tuple[dict[str, Any], str]] = {
    "GPT2LMHeadModel": ({}, "text-generation"),
    "T5ForConditionalGeneration": ({}, "text2text-generation"),
    "MarianMTModel": ({}, "text2text-generation"),
    "BertForMaskedLM": ({}, "fill-mask feature-extraction"),
    "BertModel": ({}, "feature-extraction"),
    "XLNetForTokenClassification": ({}, "token-classification"),
    "RobertaForQuestionAnswering": ({}, "question-answering"),
    "DebertaV2ForSequenceClassification": ({}, "text-classification"),
    "BartForSequenceClassification": (
        {"config.json": {"id2label": {"0": "entailment"}}},
        "text-classification zero-shot-classification",
    ),
    "Wav2Vec2ForCTC": ({"preprocessor_config.json": SOUNDS}, "automatic-speech-recognition"),
    "HubertForSequenceClassification": (
        {"preprocessor_config.json": SOUNDS},
        "audio-classification",
    ),
    "WhisperForConditionalGeneration": (
        {"processor_config.json": {"feature_extractor": SOUNDS}},
        "automatic-speech-recognition",
    ),
    "Qwen2AudioForConditionalGeneration": (
        {"config.json": {"audio_config": {}}},
        "audio-text-to-text",
    ),
    "Gemma3ForConditionalGeneration": (
        {"config.json": {"vision_config": {}}},
        "image-text-to-text",
    ),
    "Phi4MultimodalForCausalLM": (
        {"config.json": {"vision_config": {}, "audio_config": {}}},
        "image-text-to-text audio-text-to-text text-generation",
    ),
    "ViTForImageClassification": ({"preprocessor_config.json": IMAGES}, "image-classification"),
    "DetrForObjectDetection": ({"preprocessor_config.json": IMAGES}, "object-detection"),
    "CLIPModel": ({"config.json": {"vision_config": {}}}, ""),
    "Qwen3ForCausalLM": ({"modules.json": {}}, "feature-extraction text-generation"),
    "AudioFlamingo3Encoder": ({}, ""),
}


@pytest.mark.parametrize("architecture", MODELS)
def test_files_tell_the_tasks_that_fit(architecture: str) -> None:
    files, expected = MODELS[architecture]
    own = {"architectures": [architecture], **files.get("config.json", {})}
    found = {**files, "config.json": own}
    fits, architectures = fits_of_files(found, found.__getitem__, find_tasks())
    assert " ".join(fit.pipeline or fit.task for fit in fits) == expected
    assert architectures == architecture
    assert all(fit.task == "pipeline" for fit in fits if fit.pipeline)


def test_without_files_nothing_fits() -> None:
    modules: dict[str, Any] = {"modules.json": {}}
    assert fits_of_files(modules, modules.__getitem__, find_tasks()) == (
        [Fit("feature-extraction")],
        "",
    )
    assert fits_of_files((), dict[str, Any]().__getitem__, find_tasks()) == ([], "")


def free_flags() -> list[str]:
    ports = free_ports().triton_ports()
    return [f"{flag}={port}" for flag, port in ports.items()]


def test_serve_without_a_place_to_keep_a_model_says_so(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "tiny/config.json"))
    code, _, err = run("serve", "./tiny", "--health-port=0", *free_flags())
    assert (code, err.count("Not a directory")) == (1, 1), err


def test_options_of_serve_for_one_model_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--config", "none.yaml", "--health-port=0", *free_flags()]) == 1
    assert cli.main(["serve", "--name", "x"]) == 2
    assert cli.main(["serve", "s3://bucket/model"]) == 2
    assert cli.main(["serve", "org/model", "--config", "models.yaml"]) == 2
    said = capsys.readouterr().err
    assert "none.yaml: no such file; hf-triton add MODEL makes one, hf-triton serve" in said
    assert "--name, --task and --save are for serve MODEL: name a model" in said
    assert "s3://bucket/model: hf-triton add it, then run hf-triton fetch and serve" in said
    assert "--config: MODEL needs none; leave it out, or add --save" in said


@pytest.mark.parametrize(
    "words, model, arguments",
    [
        ("org/m --http-port 9000 -- --log-verbose=1", "org/m", ["--log-verbose=1"]),
        ("-- --log-verbose=1 --x", None, ["--log-verbose=1", "--x"]),
        ("--save org/m", "org/m", []),
    ],
)
def test_what_stands_behind_dashes_is_the_servers(
    words: str, model: str | None, arguments: list[str]
) -> None:
    given = ["serve", *words.split()]
    args = cli.make_parser(given).parse_args(given, Places())
    assert (args.model, args.arguments) == (model, arguments)
