"""What holds for every task folder, found by its presence: a new one is tested by being there."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from generator.models_yaml.reading import load
from generator.render import model_config
from generator.render.digest import CONFIG_FILE
from generator.render.model_folder import VALUES_FILE, render
from generator.spec import task_folders
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task, find_tasks
from generator.spec.triton_models import TritonModel, triton_models

TASKS = find_tasks()
BATCHES = {"without batches": "0", "with batches": "8"}


@pytest.fixture(params=list(TASKS.values()), ids=list(TASKS))
def task(request: pytest.FixtureRequest) -> Task:
    found: Task = request.param
    return found


@pytest.fixture
def spec(task: Task) -> ModelSpec:
    return load(task.folder / "example.yaml", TASKS)[0]


def config_of(model: TritonModel, task: Task) -> Any:
    files = render(model, task, Path("model_repository"))
    return model_config.parse(files[CONFIG_FILE].decode())


def test_its_example_is_of_this_task_and_smallest(task: Task) -> None:
    specs = load(task.folder / "example.yaml", TASKS)
    assert [spec.task for spec in specs] == [task.tag]
    assert len((task.folder / "example.yaml").read_text().splitlines()) <= 6


@pytest.mark.parametrize("size", BATCHES.values(), ids=BATCHES.keys())
def test_its_config_is_one_that_triton_loads(size: str, task: Task, tmp_path: Path) -> None:
    example = (task.folder / "example.yaml").read_text()
    (tmp_path / "models.yaml").write_text(f"{example}    max_batch_size: {size}\n")
    spec = load(tmp_path / "models.yaml", TASKS)[0]
    for model in triton_models(spec):
        config = config_of(model, task)  # render checks it
        assert (config.name, config.backend) == (model.name, "python")
        assert config.max_batch_size == int(size)
        assert config.HasField("dynamic_batching") == (size != "0")


def test_it_can_be_imported_by_tritons_python_backend(task: Task, spec: ModelSpec) -> None:
    files = render(triton_models(spec)[-1], task, Path("model_repository"))
    if not (task.folder / "model.py").exists():
        pytest.skip("has no model.py yet")
    assert b"class TritonPythonModel" in files["1/model.py"]
    assert files["1/options.py"] == (task.folder / "options.py").read_bytes()
    assert VALUES_FILE in files


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
    allowed = {"__future__", "dataclasses", "typing", "math", "enum", "string"}
    own = task.folder / "options.py"
    assert imported_by(own) <= {*allowed, *task.packages, "hf_runtime"}
    bases = [
        base
        for package in task.packages
        for base in (task.folder.parent / package).glob("*options.py")
        if f"from {package}.{base.stem} import" in own.read_text()
    ]
    for path in (own, *bases):
        used = re.findall(r"(?:from|import) (hf_runtime\S*)", path.read_text())
        assert set(used) <= {"hf_runtime.option"}
    for base in bases:
        assert imported_by(base) <= {*allowed, "hf_runtime"}
    assert imported_by(task.folder.parent / "hf_runtime" / "option.py") <= allowed
    shared = imported_by(task.folder.parent / "hf_runtime" / "__init__.py")
    assert shared <= set(sys.stdlib_module_names)


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
RUN_TIME = task_folders.default_directory()


def test_build_time_never_imports_run_time() -> None:
    run_time = {folder.name for folder in RUN_TIME.iterdir() if folder.is_dir()}
    heavy = {"torch", "transformers", "accelerate", "numpy", "triton_python_backend_utils"}
    # For users' tests, which run hooks as the server does, and what both must do alike.
    allowed = {
        "testing_hooks.py": {"hf_runtime"},
        "regular_file.py": {"hf_runtime"},
        "runtime_rules.py": {"hf_runtime", "python_env"},
    }
    for path in modules(GENERATOR):
        refused = (run_time | heavy) - allowed.get(path.name, set())
        assert not imported_by(path) & refused, path
        assert "testing_hooks" not in path.read_text() or path.name == "testing_hooks.py", path


def test_what_both_times_share_needs_only_the_standard_library() -> None:
    text = (GENERATOR / "spec" / "runtime_rules.py").read_text(encoding="utf-8")
    names = set(re.findall(r"from hf_runtime\.([\w.]+) import", text))
    assert {"weights.hub_files", "weights.locked_files"} <= names
    for name in names:
        path = (RUN_TIME / "hf_runtime" / name.replace(".", "/")).with_suffix(".py")
        assert imported_by(path) <= set(sys.stdlib_module_names)
        inner = re.findall(r"from (\.+[\w.]+) import", path.read_text(encoding="utf-8"))
        folder = name.partition(".")[0]
        assert {f"{folder}{found}" for found in inner if found != "..errors"} <= names


def test_run_time_never_imports_build_time() -> None:
    build_time = {"generator", "jinja2", "yaml", "tritonclient", "google"}
    for path in modules(RUN_TIME):
        renders = {"jinja2"} if path.name == "chat_templates.py" else set()  # as transformers does
        assert not imported_by(path) & (build_time - renders), path


def test_text_generation_declares_the_contracts_tensors() -> None:
    task = TASKS["text-generation"]
    [*_, model] = triton_models(load(task.folder / "example.yaml", TASKS)[0])
    config = config_of(model, task)
    kinds = {1: "BOOL", 4: "UINT32", 5: "UINT64", 8: "INT32", 11: "FP32", 13: "STRING"}
    assert [(i.name, kinds[i.data_type], list(i.dims)) for i in config.input] == [
        ("text_input", "STRING", [1]),
        ("input_ids", "INT32", [-1]),
        ("messages", "STRING", [1]),
        ("tools", "STRING", [1]),
        ("chat_template_kwargs", "STRING", [1]),
        ("lora_name", "STRING", [1]),
        ("stream", "BOOL", [1]),
        ("max_tokens", "INT32", [1]),
        ("min_tokens", "INT32", [1]),
        ("top_k", "INT32", [1]),
        ("n", "INT32", [1]),
        ("temperature", "FP32", [1]),
        ("top_p", "FP32", [1]),
        ("repetition_penalty", "FP32", [1]),
        ("frequency_penalty", "FP32", [1]),
        ("presence_penalty", "FP32", [1]),
        ("seed", "UINT64", [1]),
        ("random_seed", "UINT64", [1]),
        ("stop_words", "STRING", [-1]),
        ("bad_words", "STRING", [-1]),
        ("json_schema", "STRING", [1]),
        ("regex", "STRING", [1]),
        ("choice", "STRING", [-1]),
        ("sampling_parameters", "STRING", [1]),
        ("length_penalty", "FP32", [1]),
        ("beam_width", "INT32", [1]),
        ("timeout_ms", "INT32", [1]),
        ("on_timeout", "STRING", [1]),
        ("exclude_input_in_output", "BOOL", [1]),
        ("return_finish_reason", "BOOL", [1]),
        ("return_cumulative_logprob", "BOOL", [1]),
        ("return_logprobs", "BOOL", [1]),
        ("return_num_input_tokens", "BOOL", [1]),
        ("return_num_output_tokens", "BOOL", [1]),
        ("return_prompt_logprobs", "BOOL", [1]),
        ("return_prompt_token_ids", "BOOL", [1]),
        ("return_token_ids", "BOOL", [1]),
        ("return_num_cached_tokens", "BOOL", [1]),
        ("return_chat_format", "BOOL", [1]),
    ]
    assert all(tensor.optional for tensor in config.input), "a chat has no text_input"
    assert [(o.name, kinds[o.data_type], list(o.dims)) for o in config.output] == [
        ("text_output", "STRING", [-1]),
        ("finish_reason", "STRING", [-1]),
        ("cumulative_logprob", "FP32", [-1]),
        ("logprobs", "STRING", [-1]),
        ("num_input_tokens", "UINT32", [1]),
        ("num_output_tokens", "UINT32", [-1]),
        ("prompt_logprobs", "STRING", [1]),
        ("prompt_token_ids", "STRING", [1]),
        ("token_ids", "STRING", [-1]),
        ("num_cached_tokens", "UINT32", [1]),
        ("chat_format", "STRING", [1]),
    ]
