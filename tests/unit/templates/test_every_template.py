"""Rules for every task folder and every example, found by their presence."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from triton_model_exception import TritonModelException

import hf_triton
from generator.models_yaml.reading import load, load_settings
from generator.render import model_config
from generator.render.manifest import CONFIG_FILE, MODEL_FILE
from generator.render.model_folder import render
from generator.spec import task_folders
from generator.spec.task_folders import Task, find_tasks
from generator.spec.triton_models import TritonModel as ModelFolder
from generator.spec.triton_models import triton_models
from hf_triton.runtime.engine.triton_model import TritonModel

TASKS = find_tasks()
BATCHES = {"without batches": "0", "with batches": "8"}


@pytest.fixture(params=list(TASKS.values()), ids=list(TASKS))
def task(request: pytest.FixtureRequest) -> Task:
    found: Task = request.param
    return found


def config_of(model: ModelFolder, task: Task) -> Any:
    files = render(model, task, Path("model_repository"))
    return model_config.parse(files[CONFIG_FILE].decode())


def test_its_example_is_of_this_task_and_smallest(task: Task) -> None:
    specs = load(task.folder / "example.yaml")
    assert [spec.task for spec in specs] == [task.tag]
    assert len((task.folder / "example.yaml").read_text().splitlines()) <= 6


@pytest.mark.parametrize("size", BATCHES.values(), ids=BATCHES.keys())
def test_its_config_is_one_that_triton_loads(size: str, task: Task, tmp_path: Path) -> None:
    example = (task.folder / "example.yaml").read_text()
    (tmp_path / "models.yaml").write_text(f"{example}    max_batch_size: {size}\n")
    spec = load(tmp_path / "models.yaml")[0]
    for model in triton_models(spec):
        config = config_of(model, task)  # render checks it
        assert (config.name, config.backend) == (model.name, "python")
        assert config.max_batch_size == int(size)
        assert config.HasField("dynamic_batching") == (size != "0")


def model_py(task: Task, text: str = "") -> str:
    """The text of the model.py that answers for the example, with ``text`` added to its entry."""
    example = (task.folder / "example.yaml").read_text(encoding="utf-8")
    config = Path("models.yaml")
    config.write_text(example + text, encoding="utf-8")
    model = triton_models(load(config)[0])[-1]
    return render(model, task, Path("model_repository"))[MODEL_FILE].decode()


def test_its_model_is_a_class_of_the_library_to_be_changed(task: Task, in_folder: Path) -> None:
    text = model_py(task)
    assert 15 <= len(text.splitlines()) <= 60
    made = run(text)
    assert f"from {made.__base__.__module__} import" in text
    assert issubclass(made, TritonModel)
    hooked = run(re.sub(r"^    # (?=def |    )", "    ", text, flags=re.MULTILINE))
    assert {"preprocess", "postprocess"} <= vars(hooked).keys()
    assert max(map(len, text.splitlines())) <= 100
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_in_an_environment_of_its_own_the_library_is_the_servers(
    task: Task, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("needs.txt").write_text("tiny\n")
    monkeypatch.setenv("HF_TRITON_LIBRARY", "/library of the server")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert issubclass(run(model_py(task, "    python_env: needs.txt\n")), TritonModel)
    assert sys.path[0] == "/library of the server"


def test_it_names_every_package_of_the_library_that_it_imports(task: Task) -> None:
    """By them it is known whether an upgrade has changed its code."""
    known = {"runtime", "python_env", "tracing", "hooks", "version"}
    known |= {task.folder.name, *task.packages}
    for name in (task.folder.name, *task.packages):
        for path in modules(LIBRARY / name):
            text = path.read_text(encoding="utf-8")
            assert {*re.findall(r"(?:from|import) hf_triton\.(\w+)", text)} <= known, path


def test_without_the_library_a_load_fails_with_one_line(task: Task, in_folder: Path) -> None:
    text = model_py(task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, run(text).__base__.__module__, None)
        made = run(text)
    with pytest.raises(TritonModelException) as refused:
        made().initialize({"model_name": "demo"})
    assert str(refused.value).startswith("demo: ")
    assert "install hf-triton in the server's Python" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(text: str) -> Any:
    """The class that a model.py defines."""
    found: dict[str, Any] = {"__name__": "model"}
    exec(compile(text, "model.py", "exec", dont_inherit=True), found)
    return found["TritonPythonModel"]


def test_each_option_is_documented_and_takes_its_own_default(task: Task) -> None:
    for option in task.options.values():
        assert len(option.help) > 10, option.name
        assert not option.help.endswith("."), option.name
        if option.choices:
            allowed = (*option.choices, None) if option.nullable else option.choices
            assert option.default in allowed, option.name
        assert task.options_class() is not None


def test_each_number_has_a_unit_or_is_a_plain_factor(task: Task) -> None:
    for option in task.options.values():
        if option.kind is int and not option.choices:
            assert option.unit, f"{option.name} counts something: say what"


def test_its_options_file_needs_only_the_standard_library(task: Task) -> None:
    """So that the generator reads it without torch."""
    folder = LIBRARY / task.folder.name
    bases = [base for name in task.packages for base in (LIBRARY / name).glob("*options.py")]
    shared = {"hf_triton.runtime.option", *(module_name(base) for base in bases)}
    for path in (folder / "options.py", *bases, LIBRARY / "runtime" / "option.py"):
        text = path.read_text(encoding="utf-8")
        assert imported_by(path) <= {*sys.stdlib_module_names, "hf_triton"}, path
        used = re.findall(r"from (hf_triton\S*) import", text)
        assert set(used) <= shared, path
    for package in (folder, *(LIBRARY / name for name in task.packages), LIBRARY / "runtime"):
        for path in package.glob("__init__.py"):
            assert imported_by(path) <= {*sys.stdlib_module_names, "hf_triton"}, path


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts)


@cache
def imported_by(path: Path) -> set[str]:
    """The top-level packages that a module imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


GENERATOR = Path(task_folders.__file__).parents[1]
LIBRARY = Path(str(hf_triton.__file__)).parent
BESIDE_A_SERVER = {"batches", "cli", "ports", "serving", "tritonserver"}


def test_build_time_imports_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "accelerate", "numpy", "triton_python_backend_utils"}
    for path in modules(GENERATOR):
        assert not imported_by(path) & heavy, path
        assert "testing_hooks" not in path.read_text() or path.name == "testing_hooks.py", path


def test_what_generator_and_ports_share_with_models_needs_only_the_standard_library() -> None:
    paths = {*modules(GENERATOR), *modules(LIBRARY / "ports")}
    # For users' tests, which run hooks as the server does; the command line.
    paths -= {GENERATOR / "testing_hooks.py", GENERATOR / "__main__.py"}
    texts = [path.read_text(encoding="utf-8") for path in paths]
    shared = r"^from hf_triton\.((?:runtime|text_generation|encoder)\.[\w.]+) import"
    names = {name for text in texts for name in re.findall(shared, text, re.MULTILINE)}
    assert {"runtime.weights.hub_files", "runtime.weights.locked_files"} <= names
    for name in names:
        path = (LIBRARY / name.replace(".", "/")).with_suffix(".py")
        text = path.read_text(encoding="utf-8")
        assert imported_by(path) <= {*sys.stdlib_module_names, "hf_triton"}, name
        # They import OpenTelemetry where a trace is asked for.
        of_traces = {"tracing.trace", "tracing.triton"}
        assert {*re.findall(r"from hf_triton\.([\w.]+) import", text)} <= of_traces, name
        inner = re.findall(r"from (\.+)([\w.]+) import", text)
        parts = name.split(".")
        found = {".".join([*parts[: -len(dots)], one]) for dots, one in inner}
        assert found <= names | {"runtime.errors"}, name


def test_run_time_never_imports_build_time() -> None:
    build_time = {"generator", "jinja2", "yaml", "tritonclient", "google"}
    for path in modules(LIBRARY):
        if path.relative_to(LIBRARY).parts[0] in BESIDE_A_SERVER:
            continue
        assert not imported_by(path) & build_time, path


# The tensors of text generation, by their type and shape.
INPUTS = {
    "STRING [1]": (
        *("text_input", "messages", "tools", "chat_template_kwargs", "lora_name", "json_schema"),
        *("regex", "sampling_parameters", "on_timeout"),
    ),
    "STRING [-1]": ("stop_words", "bad_words", "choice"),
    "INT32 [-1]": ("input_ids",),
    "INT32 [1]": ("max_tokens", "min_tokens", "top_k", "n", "beam_width", "timeout_ms"),
    "UINT64 [1]": ("seed", "random_seed"),
    "FP32 [1]": (
        *("temperature", "top_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
        "length_penalty",
    ),
    "BOOL [1]": (
        *("stream", "exclude_input_in_output", "return_finish_reason", "return_logprobs"),
        *("return_cumulative_logprob", "return_num_input_tokens", "return_num_output_tokens"),
        *("return_prompt_logprobs", "return_prompt_token_ids", "return_token_ids"),
        *("return_num_cached_tokens", "return_chat_format"),
    ),
}
OUTPUTS = {
    "STRING [-1]": ("text_output", "finish_reason", "logprobs", "token_ids"),
    "STRING [1]": ("prompt_logprobs", "prompt_token_ids", "chat_format"),
    "FP32 [-1]": ("cumulative_logprob",),
    "UINT32 [1]": ("num_input_tokens", "num_cached_tokens"),
    "UINT32 [-1]": ("num_output_tokens",),
}


def test_text_generation_declares_the_contracts_tensors() -> None:
    task = TASKS["text-generation"]
    [*_, model] = triton_models(load(task.folder / "example.yaml")[0])
    config = config_of(model, task)
    for tensors, expected in ((config.input, INPUTS), (config.output, OUTPUTS)):
        found: dict[str, set[str]] = {}
        for one in tensors:
            kind = f"{model_config.type_word(one).removeprefix('TYPE_')} {list(one.dims)}"
            found.setdefault(kind, set()).add(one.name)
        assert found == {kind: set(names) for kind, names in expected.items()}
    assert all(tensor.optional for tensor in config.input), "a chat has no text_input"
    assert config.output[0].name == "text_output", "some clients read the first output"


ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_right(path: Path) -> None:
    tasks = find_tasks()
    for spec in load(path):
        for model in triton_models(spec):
            assert render(model, tasks[spec.task], ROOT / "model_repository")
        assert not spec.trust_remote_code
        assert not spec.source.is_local or is_of_the_demo(spec.source.folder)


def is_of_the_demo(folder: Path | None) -> bool:
    return folder is not None and folder.resolve().parent == ROOT / "demo"


def test_one_example_has_a_model_of_every_task() -> None:
    tasks = find_tasks()
    served = [spec.task for spec in load(ROOT / "examples/every-task.yaml")]
    assert sorted(served) == sorted(tasks)


def test_the_default_file_serves_the_demo_model() -> None:
    [spec] = load(ROOT / "models.yaml")
    assert (spec.name, spec.source.folder) == ("demo", ROOT / "demo/model")


TOP_LEVEL = ("# dtype", "# defaults:", "#   dtype", "# server:", "#   tracing:")


def test_every_key_that_the_default_file_explains_is_right(tmp_path: Path) -> None:
    """The commented-out keys of models.yaml, uncommented."""
    lines = (ROOT / "models.yaml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(uncommented(line) for line in lines)
    text = text.replace("./demo/model", "org/name").replace("device_map: auto", "device_map: null")
    text = text.replace("max_batch_size: 0", "max_batch_size: 8")
    (tmp_path / "my_hooks.py").write_text("def preprocess(request): pass\n")
    (tmp_path / "needs.txt").write_text("einops\n")
    (tmp_path / "models.yaml").write_text(text)
    specs = load(tmp_path / "models.yaml")
    assert [spec.name for spec in specs] == ["demo", "demo_new"]
    assert specs[0].max_batch_size == 8
    settings = load_settings(tmp_path / "models.yaml")
    assert settings.tracing is not None


def uncommented(line: str) -> str:
    """``    # dtype: auto`` -> ``    dtype: auto``; prose stays a comment."""
    indent = len(line) - len(line.lstrip())
    body = line.lstrip()
    if body.startswith(TOP_LEVEL) or (indent == 4 and body[0] == "#"):
        return " " * indent + body[2:] if not body.startswith("#    ") else ""
    return line
