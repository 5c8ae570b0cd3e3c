"""The keys of a model in models.yaml, each declared once with its check, its default and its line
in the documentation, and ModelSpec, what a correct entry becomes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar

from generator.spec.model_source import (
    GGUF_SUFFIX,
    AdapterSource,
    AdaptersSource,
    HooksFile,
    ModelSource,
    Revision,
    Source,
    find_hooks,
)
from generator.spec.python_env import PythonEnvironment
from generator.yaml_file.keys import (
    GOT,
    INT32_MAX,
    OF_KEY,
    SAID,
    UINT64_MAX,
    After,
    As,
    Before,
    Flag,
    Found,
    Keys,
    Mistake,
    Refused,
    Switch,
    Text,
    key,
    key_names,
    listed,
    mapped,
    number,
    one_of,
    plain_name,
    refused,
    repeated,
    whole,
)
from generator.yaml_file.nodes import Node, did_you_mean, scalars
from hf_triton.runtime.weights.hub_files import is_safe_path
from hf_triton.runtime.weights.locked_files import LockedFile

MAX_NAME = 128
DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
INSTANCE_KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL")
# Each model that is not always loaded says so in its config.pbtxt.
LOADS = ("always", "on_demand", "manual")
LAYOUTS = ("single", "ensemble")
BACKENDS = ("python", "onnxruntime", "tensorrt")
MAX_INSTANCES = 128
MAX_ADAPTERS = 256
MAX_ADAPTER_NAME = 64

_Gpu = Annotated[int, whole(0, 1023)]
Instances = Annotated[int, whole(1, MAX_INSTANCES)]
Microseconds = Annotated[int, whole(0, UINT64_MAX, "microseconds")]
BatchSize = Annotated[int, whole(0, INT32_MAX)]


@dataclass(frozen=True)
class InstanceGroup(Keys):
    """``count`` instances of a model on each of ``gpus``, as Triton's ModelInstanceGroup."""

    count: Instances = 1
    kind: Annotated[str, one_of(*INSTANCE_KINDS)] = "KIND_AUTO"
    gpus: Annotated[tuple[_Gpu, ...], listed("a list of GPU numbers")] = ()

    def mistakes(self) -> Iterator[Mistake]:
        if self.gpus and self.kind in ("KIND_CPU", "KIND_MODEL"):
            only = "only KIND_GPU and KIND_AUTO do"
            yield Mistake(f"{self.kind} takes no gpus; {only}", SAID, ("gpus",))

    @property
    def num_instances(self) -> int:
        """The number of instances; without ``gpus`` those of each GPU that Triton finds."""
        return self.count * max(1, len(self.gpus))


@dataclass(frozen=True)
class DynamicBatching(Keys):
    """Triton's ModelDynamicBatching; empty and zero mean Triton's own defaults."""

    expected: ClassVar[str] = "true, false or a map"
    preferred_batch_size: Annotated[
        tuple[Annotated[int, whole(1, INT32_MAX)], ...], listed("a list of batch sizes")
    ] = ()
    max_queue_delay_microseconds: Microseconds = 0


@dataclass(frozen=True)
class _Latest(Keys):
    """The highest versions."""

    num_versions: Annotated[int, whole(1, 2**32 - 1)] = 1


@dataclass(frozen=True)
class _All(Keys):
    """Every version."""

    expected: ClassVar[str] = "an empty map, {}"


@dataclass(frozen=True)
class VersionPolicy(Keys):
    """Triton's ModelVersionPolicy: exactly one of the two is set."""

    expected: ClassVar[str] = "a map"
    gone: ClassVar[Mapping[str, str]] = {
        "specific": "use latest or all: a changed model gets the next number"
    }
    latest: _Latest | None = None
    all: _All | None = None

    def mistakes(self) -> Iterator[Mistake]:
        count = 2 - (self.latest, self.all).count(None)
        if count != 1:
            yield Mistake(f"got {count} keys, expected one of latest, all")


@dataclass(frozen=True)
class ResponseCache(Keys):
    """Sizes the response cache of each instance of a model."""

    expected: ClassVar[str] = "true, false or a map"
    size_mib: Annotated[int, whole(1, 2**20, "MiB in each instance")] = 64


METRIC_TYPES = ("counter", "gauge", "histogram")
# https://prometheus.io/docs/concepts/data_model/; colons are for recording rules.
_METRIC_NAME = Text(
    "a name of letters, digits and _, at most 128, no digit first", "[a-zA-Z_][a-zA-Z0-9_]{0,127}"
)
_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


def _label(name: str) -> str:
    if name in ("model", "version", "instance"):
        raise refused("which every metric has already", GOT)
    if name == "le" or name.startswith("__"):
        raise refused("which Prometheus reserves", GOT)
    return name


@dataclass(frozen=True)
class Metric(Keys):
    """Declares a metric that hooks may observe: a Prometheus counter, gauge or histogram."""

    needs: ClassVar[Mapping[str, str]] = {"type": f"one of {', '.join(METRIC_TYPES)}"}
    type: Annotated[str, one_of(*METRIC_TYPES)]
    help: Annotated[str, Text("a line that says what it counts")] = ""
    labels: Annotated[
        tuple[Annotated[str, _METRIC_NAME, After(_label)], ...],
        listed("a list of labels' names", 8, "labels"),
    ] = ()
    buckets: Annotated[
        tuple[Annotated[float, number()], ...], listed("a list of upper bounds", 64, "bounds")
    ] = ()

    def mistakes(self) -> Iterator[Mistake]:
        if self.type == "histogram" and not self.buckets:
            yield Mistake("missing key 'buckets': a histogram's upper bounds, ascending")
        if self.type != "histogram" and self.buckets:
            only = "only a histogram does"
            yield Mistake(f"a {self.type} has no buckets; {only}", SAID, ("buckets",))
        for place, (one, next_) in enumerate(zip(self.buckets, self.buckets[1:], strict=False), 1):
            if next_ < one:
                message = f"which is less than {one:g} before it; expected ascending"
                yield Mistake(message, GOT, ("buckets", place))


def _names_of_metrics(given: dict[str, Any]) -> Iterator[Mistake]:
    if len(given) > 100:
        yield Mistake(f"got {len(given)} metrics, expected at most 100")
    histograms = {
        f"{name}{part}": name
        for name, one in given.items()
        if isinstance(one, dict) and one.get("type") == "histogram"
        for part in _HISTOGRAM_PARTS
    }
    for name in given:
        if not re.fullmatch(_METRIC_NAME.pattern, name):
            yield Mistake(f"got {name[:60]!a}, expected {_METRIC_NAME.expected}", OF_KEY, (name,))
        for prefix in ("hf_triton_", "nv_"):
            if name.lower().startswith(prefix):
                message = f"names that begin with {prefix} are the server's own"
                yield Mistake(message, OF_KEY, (name,))
        if name in histograms:
            message = f"is a series of the histogram {histograms[name]} on /metrics already"
            yield Mistake(message, OF_KEY, (name,))


_MODULES = Annotated[
    tuple[Annotated[str, Text("a module's name")], ...], listed("a list of modules' names")
]
_BITSANDBYTES = ("llm_int8_skip_modules", "llm_int8_enable_fp32_cpu_offload")
_METHODS = {
    "int8": ("modules_to_not_convert",),
    "int8_dynamic": ("modules_to_not_convert",),
    "int4": ("modules_to_not_convert", "group_size"),
    "bitsandbytes_8bit": (*_BITSANDBYTES, "llm_int8_threshold"),
    "bitsandbytes_4bit": (
        *_BITSANDBYTES,
        "bnb_4bit_quant_type",
        "bnb_4bit_compute_dtype",
        "bnb_4bit_use_double_quant",
    ),
}
_A_METHOD = f"one of {', '.join(_METHODS)}"


@dataclass(frozen=True)
class Quantization(Keys):
    """Stores weights in fewer bits: a method, and its arguments as transformers names them."""

    expected: ClassVar[str] = f"{_A_METHOD}, or a map with such a 'method'"
    needs: ClassVar[Mapping[str, str]] = {"method": _A_METHOD}
    method: Annotated[str, one_of(*_METHODS)]
    modules_to_not_convert: _MODULES | None = None
    group_size: Annotated[int, one_of(32, 64, 128, 256)] | None = None
    llm_int8_skip_modules: _MODULES | None = None
    llm_int8_enable_fp32_cpu_offload: Flag | None = None
    llm_int8_threshold: Annotated[float, number(0)] | None = None
    bnb_4bit_quant_type: Annotated[str, one_of("fp4", "nf4")] | None = None
    bnb_4bit_compute_dtype: Annotated[str, one_of(*DTYPES[1:])] | None = None
    bnb_4bit_use_double_quant: Flag | None = None

    @property
    def arguments(self) -> dict[str, object]:
        given = {key: value for key, value in vars(self).items() if value is not None}
        del given["method"]
        return given

    @classmethod
    def names(cls, value: Mapping[str, Any]) -> Mapping[str, bool]:
        known = key_names(cls)
        method = value.get("method")
        if not isinstance(method, str) or method not in _METHODS:
            return known
        return {name: known[name] for name in ("method", *_METHODS[method])}


def _method(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in _METHODS:
        raise refused(Quantization.expected)
    return {"method": value}


@dataclass(frozen=True)
class Ensemble(Keys):
    """The steps of a model. All after ``postprocessing_instances`` is for a model step on a
    backend of Triton's own: rows at once, the multiple of tokens that rows are padded to, and
    whether the exported model takes ``token_type_ids``.
    """

    backend: Annotated[str, one_of(*BACKENDS)] = "python"
    tokenizer_instances: Annotated[int, whole(1, MAX_INSTANCES, "processes")] = 1
    postprocessing_instances: Annotated[int, whole(1, MAX_INSTANCES, "processes")] = 1
    model_max_batch_size: Annotated[int, whole(1, INT32_MAX, "rows of tokens")] = 64
    pad_to_multiple_of: Annotated[int, whole(1, 4096, "tokens")] = 1
    token_type_ids: Flag = True

    @property
    def is_native(self) -> bool:
        return self.backend != "python"


def _files_are_inside(files: dict[str, Any]) -> Iterator[Mistake]:
    if not files:
        yield Mistake("has no files")
    for path in files:
        if not is_safe_path(path):
            yield Mistake("is not a path inside a repository", OF_KEY, (path,))


@dataclass(frozen=True)
class _Locked(Keys):
    """A file in models.lock."""

    size: Annotated[int, whole(0, unit="bytes")]
    sha256: Annotated[str, Text("a SHA-256", "[0-9a-f]{64}")]


@dataclass(frozen=True)
class LockedSnapshot(Keys):
    """A commit on the Hub, and those of its files that are served, by path."""

    commit: Annotated[str, Text("a commit", "[0-9a-f]{40}")]
    files: Annotated[
        dict[
            str,
            Annotated[
                LockedFile, As(_Locked), After(lambda file: LockedFile(file.size, file.sha256))
            ],
        ],
        mapped("a map", _files_are_inside),
    ]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def beside(self, other: LockedSnapshot | None) -> LockedSnapshot:
        """The snapshot with the files of ``other`` too, if that is of the same commit."""
        if other is None or other.commit != self.commit:
            return self
        return LockedSnapshot(self.commit, {**other.files, **self.files})


@dataclass(frozen=True)
class Adapter(Keys):
    """A LoRA adapter of a model: what requests call it, and where it comes from."""

    expected: ClassVar[str] = "a map with name, model and revision"

    name: Annotated[str, plain_name(MAX_ADAPTER_NAME)]
    model: AdapterSource
    revision: Revision | None = None

    def mistakes(self) -> Iterator[Mistake]:
        if self.revision is not None and (kind := self.model.without_revisions):
            message = f"only an adapter on the Hub has revisions, and 'model' is {kind}"
            yield Mistake(message, SAID, ("revision",))


REQUEST_ID = "request_id"
# Parameters that Triton keeps for itself: a model never sees them.
_NEVER_SEEN = ("id", "timeout", "priority", "sequence_start", "sequence_end", "sequence_id")
# The keys that an arm may override: they may change its answers, but not how requests look.
OVERRIDES = (
    "model",
    "revision",
    "dtype",
    "quantization",
    "device_map",
    "trust_remote_code",
    "allow_pickle",
    "allow_missing_weights",
    "dynamic_batching",
    "instance_group",
    "version_policy",
    "hooks",
    "python_env",
    "metrics",
    "response_cache",
    "options",
)


def _exact(share: float) -> Fraction:
    """A share as it is written, 0.1 a tenth, so that shares add up exactly."""
    exact = Fraction(repr(share))
    if (exact * 1000).denominator != 1:
        raise refused("expected at most 3 decimals", GOT)
    return exact


@dataclass(frozen=True)
class Arm(Keys):
    """``weight`` percent of a model's requests, and the entry that answers them: ``to`` another
    one, or one like the model but for its ``overrides``, or without both the model itself.
    """

    expected: ClassVar[str] = "a map with name, weight and others"
    name: Annotated[str, plain_name(64)]
    weight: Annotated[Fraction, As(Annotated[float, number(0, 100, unit="percent")]), After(_exact)]
    to: Annotated[str, Text("the name of another model of this file")] | None = None
    overrides: tuple[str, ...] = field(default=(), init=False)

    def model_of(self, owner: str) -> str:
        return self.to or (f"{owner}_{self.name}" if self.overrides else owner)

    @classmethod
    def unknown(cls, name: str, known: Collection[str]) -> str:
        if name in OVERRIDES:
            return ""  # a model's, and checked as such
        if name in key_names(ModelKeys):
            return f"an arm gets its model's requests, so it can't have '{name}' of its own"
        return f"unknown key{did_you_mean(name, (*known, *OVERRIDES), 'keys')}"

    @classmethod
    def _read(cls, value: Any, handler: Any) -> Any:
        made = super()._read(value, handler)
        overrides = tuple(key for key in OVERRIDES if key in value)
        if made.to is not None and overrides:
            own = f"that model has its own {', '.join(overrides)}"
            message = f"{own}; give 'to' or keys that differ, not both"
            raise Refused(Mistake(message, SAID, ("to",)))
        object.__setattr__(made, "overrides", overrides)
        return made


@dataclass(frozen=True)
class Canary(Keys):
    """Splits a model's requests among arms; ``sticky`` names the value that keeps requests with one
    arm.
    """

    expected: ClassVar[str] = "a map with arms and sticky"
    needs: ClassVar[Mapping[str, str]] = {"arms": "the arms among which requests are split"}
    arms: Annotated[tuple[Arm, ...], listed("a list of two or more arms", least=2)]
    sticky: (
        Annotated[
            str,
            Text(
                f"{REQUEST_ID}, or the name of an input tensor or request parameter",
                r"[A-Za-z_][\w.-]{0,127}",
            ),
        ]
        | None
    ) = None

    def mistakes(self) -> Iterator[Mistake]:
        own = [arm.name for arm in self.arms if arm.to is None and not arm.overrides]
        if len(own) != 1:
            what = "exactly one arm without 'to' and other keys: this model itself"
            yield Mistake(f"got {', '.join(own) or 'none'}, expected {what}", SAID, ("arms",))
        total = sum(arm.weight for arm in self.arms)
        if total != 100:
            message = f"weights add up to {float(total):g}, expected 100 (percent)"
            yield Mistake(message, SAID, ("arms",))
        for name in ("name", "to"):
            again = repeated([getattr(arm, name) for arm in self.arms], name)
            yield from (one.below(("arms",)) for one in again)
        if self.sticky in _NEVER_SEEN:
            message = f"which Triton keeps for itself; use {REQUEST_ID} or another"
            yield Mistake(message, GOT, ("sticky",))


def num_gpus(options: Mapping[str, Any]) -> int:
    """The GPUs over which vLLM spreads one copy, by its own arguments."""
    own = options.get("vllm")
    given = own if isinstance(own, Mapping) else {}
    sizes = (given.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    tensor, pipeline = (size if type(size) is int and size > 0 else 1 for size in sizes)
    return tensor * pipeline


def _layout(value: object) -> object:
    if value == "vllm-backend":
        own = "or write a folder for NVIDIA's vLLM backend by hand"
        raise refused(f"which is gone: leave it out and set engine: vllm in options, {own}", GOT)
    return value


def _gguf_file(path: str) -> str:
    if not is_safe_path(path):
        raise refused(_GGUF.expected)
    return path


_GGUF = Text(f"a file of the model's repository that ends in {GGUF_SUFFIX}", rf".+\{GGUF_SUFFIX}")
_GROUPS = "a list of maps with count, kind, gpus"
_METRICS = "a map from metrics' names to type, help, labels and buckets"
_HOOKS = Annotated[str, Text("a Python file")]
_ADAPTERS = listed(
    "a list of maps with name, model and revision", MAX_ADAPTERS, "adapters", by=("name",)
)
_METHOD_NAME = {"enum": [*_METHODS]}
# Names that OpenAI's clients send: other vendors' have slashes in them, Ollama's colons.
_SERVED_NAME = Text(
    "letters (a-z, A-Z), digits and _ - . / : between them, at most 128 characters",
    r"[A-Za-z0-9]([A-Za-z0-9_.:/-]{0,126}[A-Za-z0-9])?",
)


@dataclass(frozen=True)
class ModelKeys(Keys):
    """All that an entry of ``models:`` can say; ``name``, ``task`` and ``model`` it must."""

    expected: ClassVar[str] = "a map with name, task and model"
    gone: ClassVar[Mapping[str, str]] = {
        "draft_model": "set speculative_method: ngram in options, or engine: vllm with its "
        "speculative_config",
        "max_loaded_adapters": "set max_loras in options.vllm",
        "shadow": "let a gateway mirror requests to the other model, as Envoy, NGINX and "
        "Kubernetes' Gateway API do",
    }
    name: Annotated[str, plain_name(MAX_NAME)] = key(
        "",
        "its folder in the model repository and its name in URLs: letters, digits, `_`, `-`, `.`",
    )
    task: Annotated[str, Text("a task's name")] = key("", "one of [the tasks](tasks.md)")
    model: ModelSource = key(
        Source("", None),
        "a Hub id, a folder, a `.gguf` file, or a folder of an object store: "
        "[below](#where-weights-come-from)",
        "",
    )
    revision: Revision | None = key(None, "a branch, a tag or, best, a commit", "the Hub's default")
    gguf_file: Annotated[str, _GGUF, After(_gguf_file)] | None = key(
        None, "which `.gguf` file of a repository or an object store's folder is served"
    )
    dtype: Annotated[str, one_of(*DTYPES)] = key(
        "auto",
        "type of the computation: `float32`, `float16`, `bfloat16`; `auto`: as the weights were "
        "saved, on a CPU the faster one ([dtype auto](engines.md#dtype-auto-on-a-cpu))",
    )
    quantization: Annotated[Quantization, Before(_method, (_METHOD_NAME,))] | None = key(
        None, "store weights in fewer bits: [quantization](quantization.md)"
    )
    device_map: Annotated[str, one_of(*DEVICE_MAPS)] | None = key(
        None, "spread one copy over all GPUs: [several GPUs](several-gpus.md)"
    )
    trust_remote_code: Flag = key(
        False, "true runs Python code from the model's repository: read that code first"
    )
    allow_pickle: Flag = key(
        False,
        "true also loads pickled weights, where there are no safetensors; a pickle can run its "
        "author's code",
    )
    allow_missing_weights: Flag = key(
        False,
        "true uses random numbers for weights that the files lack, with a warning; otherwise such "
        "a model does not load",
    )
    max_batch_size: BatchSize = key(
        0, "0: tensors have shape `[1]`; above 0: `[batch, 1]`, at most that many rows"
    )
    dynamic_batching: Annotated[DynamicBatching | None, Switch] = key(
        DynamicBatching(),
        "with `max_batch_size` above 0: true, false, or Triton's `preferred_batch_size` and "
        "`max_queue_delay_microseconds`",
        "true",
    )
    instance_group: Annotated[tuple[InstanceGroup, ...], listed(_GROUPS, unique=False)] | None = (
        key(None, "copies of the model and their devices, as in Triton", "Triton's choice")
    )
    version_policy: VersionPolicy | None = key(None, "as in Triton", "Triton's")
    streaming: Flag = key(
        False,
        "false: no `NAME_stream` ([requests](requests.md#whole-answers-and-streams))",
        "as the task",
    )
    load: Annotated[str, one_of(*LOADS)] = key(
        "always",
        "`on_demand`: loaded when a request asks for it; `manual`: [on demand](on-demand.md)",
    )
    idle_s: Annotated[int, whole(1, 30 * 24 * 3600, "seconds")] | None = key(
        None, "after how many seconds without a request an `on_demand` model is unloaded", "never"
    )
    layout: Annotated[str, one_of(*LAYOUTS), Before(_layout)] = key(
        "single", "`ensemble`: [encoders](encoders.md#tokenisation-apart-from-the-model)"
    )
    ensemble: Ensemble | None = key(None, "settings of `layout: ensemble`")
    python_env: PythonEnvironment | None = key(
        None, "packages that only this model has: [Python environments](python-environments.md)"
    )
    adapters: Annotated[tuple[Adapter, ...], _ADAPTERS] | None = key(
        None, "LoRA adapters: [LoRA](lora.md)"
    )
    adapters_from: (
        Annotated[tuple[AdaptersSource, ...], listed("a list of folders and Hub ids")] | None
    ) = key(
        None,
        "places from which requests with the admin key may load LoRA adapters: "
        "`[./folder, org/name, org/*]`",
    )
    served_names: (
        Annotated[tuple[Annotated[str, _SERVED_NAME], ...], listed("a list of names")] | None
    ) = key(
        None,
        "other names of the model at OpenAI's port, for clients whose model is fixed: "
        "`[gpt-4o-mini, openai/gpt-4o]`",
    )
    canary: Canary | None = key(
        None, "split requests with another version: [canary](operating.md#canary-and-ab)"
    )
    hooks: Annotated[HooksFile, As(_HOOKS), Found(find_hooks)] | None = key(
        None, "your own Python around requests: [hooks](hooks.md)"
    )
    metrics: Annotated[dict[str, Metric], mapped(_METRICS, _names_of_metrics)] = key(
        dict, "what the hooks count: [metrics](hooks.md)", "none"
    )
    response_cache: Annotated[ResponseCache | None, Switch] = key(
        None,
        "answer repeated requests from memory: [response cache](hooks.md#response-cache)",
        "false",
    )
    options: Annotated[Mapping[str, Any], As(dict[str, Any]), mapped("a map of options")] = key(
        dict, "how the task's engine runs the model: [options](#options)", ""
    )


@dataclass(frozen=True)
class ModelSpec(ModelKeys):
    """One entry of ``models:``, complete: defaults merged in, every value checked. ``locked`` is
    the snapshot in models.lock; ``places`` are the given keys with their lines. ``arm_of`` is the
    entry whose canary defines this one. ``adapter`` is the adapter's name if this stands for one
    (see ``parts``). ``gguf_file`` is the one file that is loaded of the source. ``ensemble`` is
    None in any other layout.
    """

    locked: LockedSnapshot | None = None
    places: Mapping[str, Node] = field(default_factory=dict, compare=False, repr=False)
    arm_of: str | None = None
    adapter: str | None = None
    locked_adapters: tuple[LockedSnapshot | None, ...] = ()

    @property
    def source(self) -> Source:
        return self.model

    @property
    def instance_groups(self) -> tuple[InstanceGroup, ...]:
        """Without the key: one instance for all GPUs if a device map or vLLM spreads the model."""
        if self.instance_group is not None:
            return self.instance_group
        is_spread = self.device_map or num_gpus(self.options) > 1
        return (InstanceGroup(kind="KIND_MODEL" if is_spread else "KIND_AUTO"),)

    @property
    def takes_adapters(self) -> bool:
        return bool(self.adapters or self.adapters_from)

    @property
    def local_folders(self) -> Iterator[tuple[Node, Path]]:
        """Folders and files on this machine that models.yaml names, each with its place there."""
        for part in self.parts:
            if part.source.folder is not None:
                yield part.places["model"], part.source.folder
        places = scalars(self.places["adapters_from"]) if self.adapters_from else ()
        for place, source in zip(places, self.adapters_from or (), strict=True):
            if source.folder is not None:
                yield place, source.folder

    @property
    def parts(self) -> tuple[ModelSpec, ...]:
        """Everything with files of its own: the model, and each adapter as if it were a model."""
        adapters = self.adapters or ()
        locked = self.locked_adapters or (None,) * len(adapters)
        return (self, *map(self._part, range(len(adapters)), adapters, locked))

    def _part(self, number: int, part: Adapter, locked: LockedSnapshot | None) -> ModelSpec:
        return replace(
            self,
            adapter=part.name,
            model=part.model,
            revision=part.revision,
            locked=locked,
            places=self.places["adapters"].items[number].entries,
            adapters=None,
            adapters_from=None,
            locked_adapters=(),
            gguf_file=None,
        )

    @property
    def title(self) -> str:
        return self.name if self.adapter is None else f"{self.name}, adapter {self.adapter}"
