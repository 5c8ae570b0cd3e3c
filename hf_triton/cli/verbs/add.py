"""``hf-triton add MODEL``: writes an entry into models.yaml, whose other bytes stay as they are. It
is the entry that ``serve MODEL`` serves.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

from generator.errors import FetchError, ModelError, UsageError
from generator.models_yaml.models_lock import DEFAULT_REVISION, lock_path
from generator.models_yaml.reading import load_unpinned
from generator.repository.compare import readable_errors
from generator.repository.staging import write_through
from generator.spec.model_source import GGUF_SUFFIX, ModelSource, Source, find_model
from generator.spec.model_spec import MAX_NAME
from generator.spec.task_folders import find_tasks
from generator.spec.task_names import CONFIG, Fit, fit_of, fits_of_files
from generator.spec.triton_models import ENGINE_SUFFIX
from generator.yaml_file import keys, nodes
from generator.yaml_file.editing import EditError, with_item
from generator.yaml_file.nodes import did_you_mean
from hf_triton.runtime.regular_file import read_json
from hf_triton.runtime.weights.hub_files import has_config, is_stored, other_kind
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.state_file import running_servers

_HUB_FILE = re.compile(rf"(\w[^/]*/[^/]+)/(.+\{GGUF_SUFFIX})")
_NEW_FILE = b"""\
# yaml-language-server: $schema=models.schema.json
# `hf-triton schema > models.schema.json` makes that file, by which editors complete and check keys.
"""
_EXAMPLE = """\
The task is the Hub's pipeline_tag, else what the files say: the architectures of config.json, a
sentence-transformers folder, a processor. Where two tasks fit, a line says which was taken.
Comments, order, quotes and indentation of the file stay; a file that is missing is made.

  hf-triton add HuggingFaceTB/SmolLM2-135M-Instruct --name smollm
  hf-triton add ./my-classifier --task zero-shot-classification
  hf-triton add ./chat-Q4_K_M.gguf          # of a repository on the Hub: org/model/FILE.gguf
  hf-triton serve                           # serve the file; a running server: hf-triton apply
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    parser.add_argument("model", metavar="MODEL", help="a Hub id, a folder or a .gguf file")
    add_name_and_task(parser)


def add_name_and_task(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--name", help="its name in URLs (default: made from MODEL)")
    about = "a task of hf-triton tasks, or the Hub's tag for one (default: found out)"
    parser.add_argument("--task", help=about)


def run(args: argparse.Namespace) -> int:
    """Raises GeneratorError where the model can't be added; nothing is written then."""
    config = Path(args.config)
    print(add(config, args.model, args.name, args.task))
    verb = "apply" if running_servers(Path(args.repository)) else "serve"
    say(f"next: {'hf-triton fetch, and ' * lock_path(config).exists()}hf-triton {verb}")
    return 0


def add(config: Path, model: str, name: str | None, task: str | None) -> str:
    """Adds a model, and returns a line that says so. Raises GeneratorError."""
    base, shown = config.absolute().parent, str(config)
    entry, why = entry_of(model, name, task, base)
    with readable_errors():
        old = config.read_bytes() if config.exists() else _NEW_FILE
    is_blank = all(line.lstrip()[:1] in (b"", b"#") for line in old.splitlines())
    root = nodes.Node({}, 1, 1) if is_blank else nodes.parse(old, shown)
    models = root.get("models") or nodes.Node(None, 1, 1)
    if not isinstance(root.value, dict) or not isinstance(models.value, list | type(None)):
        load_unpinned(config, old)  # says what is wrong
    for node in models.items:
        _refuse_again(node, entry, config)
    try:
        new = with_item(old.decode(), "models", entry).encode()
        changed = nodes.parse(new, shown)
        after = {**keys.plain(root), "models": [*map(keys.plain, models.items), entry]}
        if keys.plain(changed) != after:
            raise EditError("more than the new entry would change")
    except EditError as error:
        raise ModelError(f"{config}: {error}; nothing was written: add {model} by hand") from None
    load_unpinned(config, new)
    with readable_errors():
        base.mkdir(parents=True, exist_ok=True)
        write_through(config, new)
    line = changed.entries["models"].items[-1].line
    return f"{config}:{line}: '{entry['name']}' is {entry['task']}{why}"


def _refuse_again(node: nodes.Node, entry: dict[str, object], config: Path) -> None:
    """Raises ModelError where the entry of ``node`` has the new one's model or name."""
    given = keys.plain(node) if isinstance(node.value, dict) else {}
    name, model, file = given.get("name"), given.get("model"), given.get("gguf_file")
    base = config.absolute().parent
    places = {(base / Path(str(one)).expanduser()).resolve() for one in (model, entry["model"])}
    if len(places) == 1 and file == entry.get("gguf_file"):
        raise ModelError(f"{config}:{node.line}: {model} stands there already, as '{name}'")
    if str(name).lower() == str(entry["name"]).lower():
        hint = "choose another with --name"
        raise ModelError(f"{config}:{node.line}: '{name}' is a model's name already: {hint}")


def name_of(path: Path) -> str:
    """A model's name by that of its file, folder or repository."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+|\.\.+", "-", path.name.removesuffix(GGUF_SUFFIX))
    return plain[: MAX_NAME - len(ENGINE_SUFFIX)].strip("_.-") or "model"


def entry_of(
    model: str, name: str | None, task: str | None, base: Path
) -> tuple[dict[str, object], str]:
    """The entry of a model, whose paths start from ``base``, and how its task was found."""
    hub_file = _HUB_FILE.fullmatch(model) if not Path(model).exists() else None
    source = _source(hub_file[1] if hub_file else model)
    is_gguf = hub_file or (source.folder is not None and source.folder.is_file())
    fit, why = (Fit("text-generation"), "") if is_gguf and not task else _fit(source, model, task)
    entry: dict[str, object] = {"name": name or name_of(Path(source.folder or model))}
    if why_not := keys.problem(Annotated[str, keys.plain_name(MAX_NAME)], entry["name"]):
        raise UsageError(f"--name: {why_not}")
    entry |= {"task": fit.task, "model": _written(source, base)}
    if hub_file:
        entry["gguf_file"] = hub_file[2]
    if fit.pipeline:
        entry["options"] = {"pipeline": fit.pipeline}
    return entry, why


def _source(model: str) -> Source:
    if Path(model).is_file() and not model.endswith(GGUF_SUFFIX):
        raise ModelError(f"{model} is a file: name its folder, or a {GGUF_SUFFIX} file")
    if why := keys.problem(ModelSource, model, Path.cwd()):
        raise ModelError(why)
    source = find_model(model, Path.cwd())
    if source.folder and source.folder.is_file():
        with readable_errors(), source.folder.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{model} is not a GGUF file: it does not begin with 'GGUF'")
    return source


def _written(source: Source, base: Path) -> str:
    if source.folder is None or Path(source.text).is_absolute():
        return source.text
    path = os.path.relpath(source.folder, base)
    return path if path.startswith("../") or path in (".", "..") else f"./{path}"


def _fit(source: Source, model: str, task: str | None) -> tuple[Fit, str]:
    """The task, and how it was found. Raises GeneratorError."""
    tasks = find_tasks()
    say_task = f"say it with --task, one of {', '.join(tasks)}"
    asked = None if task is None else Fit(task) if task in tasks else fit_of(task, tasks)
    if task is not None and asked is None:
        raise UsageError(f"--task: unknown task '{task}'{did_you_mean(task, tasks, 'tasks')}")
    if asked and not source.is_local:  # then nobody need be asked
        return asked, ""
    if is_stored(source.text):
        raise UsageError(f"{model}: its task can't be found out: {say_task}")
    try:
        names, read, tag = _look(source)
        if fit := fit_of(tag, tasks):
            return fit, f", by the Hub's pipeline_tag {tag}"
        if not has_config(names):
            missing = f"has no {CONFIG}: name the folder of a model as transformers saves it"
            raise ModelError(f"{model} {other_kind(names) or missing}")
        if asked:
            return asked, ""
        fits, made_of = fits_of_files(names, read, tasks)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{model}: its files can't be read ({error}): {say_task}") from None
    if not fits:
        found = " and ".join(filter(None, (tag, made_of))) or "no architectures"
        raise ModelError(f"{model}: its task can't be found out ({found}): {say_task}")
    others = (f"--task {one.pipeline or one.task} takes that" for one in fits[1:])
    return fits[0], "; ".join([f", by its files ({made_of})", *others])


def _look(source: Source) -> tuple[Collection[str], Callable[[str], Any], str]:
    """The names of a model's files, a reader of those in JSON, and the Hub's tag."""
    folder = source.folder
    if folder is not None:
        return os.listdir(folder), lambda name: read_json(folder / name), ""  # noqa: PTH208
    from generator.fetch import hub_client  # only what is not here needs a Hub

    try:
        listing = hub_client.list_files(source.text, DEFAULT_REVISION)
    except Exception as error:  # noqa: BLE001, huggingface_hub raises many kinds
        told = f"there is no folder {source.text}, and {hub_client.explain(error, source.text)}"
        raise FetchError(f"{told}; with --task the Hub is not asked") from None
    # The Hub has read config.json.
    return (
        listing.files,
        lambda name: listing.config if name == CONFIG else {},
        listing.pipeline_tag,
    )
