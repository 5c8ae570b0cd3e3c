"""What a correct entry of models.yaml becomes: values already checked, nothing that checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from generator.spec.model_source import Source
from generator.spec.runtime_rules import LockedFile
from generator.yaml_file.nodes import Node, scalars


@dataclass(frozen=True)
class InstanceGroup:
    """``count`` instances of a model on each of ``gpus``, as Triton's ModelInstanceGroup."""

    count: int = 1
    kind: str = "KIND_AUTO"
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class DynamicBatching:
    """Triton's ModelDynamicBatching; empty and zero mean Triton's own defaults."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0


@dataclass(frozen=True)
class VersionPolicy:
    """Triton's ModelVersionPolicy: exactly one of the three is set."""

    latest: int | None = None
    all: bool = False
    specific: tuple[int, ...] = ()


@dataclass(frozen=True)
class Metric:
    """What hooks may observe: a counter, gauge or histogram of Prometheus."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True)
class ResponseCache:
    """How much of its answers each instance of a model keeps."""

    size_mib: int = 64


@dataclass(frozen=True)
class Quantization:
    """How weights are stored in fewer bits: a method, and arguments of transformers' for it."""

    method: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class HooksFile:
    """A user's preprocess and postprocess, as they were when models.yaml was read."""

    path: Path
    content: bytes


@dataclass(frozen=True)
class PythonEnv:
    """A model's own Python environment. ``folder`` is one that somebody else made; otherwise
    ``digest`` stands for all that the requirements say, those of ``no_deps`` installed last and
    alone. ``files`` is every file that was read for it.
    """

    written: str
    folder: Path | None = None
    requirements: Path | None = None
    no_deps: Path | None = None
    system_site_packages: bool = False
    digest: str = ""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Ensemble:
    """How a model is cut into steps. All after ``postprocessing_instances`` is for a model step on
    a backend of Triton's own: rows at once, the multiple of tokens that rows are padded to, and
    whether the exported model takes ``token_type_ids``.
    """

    backend: str = "python"
    tokenizer_instances: int = 1
    postprocessing_instances: int = 1
    model_max_batch_size: int = 64
    pad_to_multiple_of: int = 1
    token_type_ids: bool = True

    @property
    def is_native(self) -> bool:
        """Whether the model step needs no Python."""
        return self.backend != "python"


@dataclass(frozen=True)
class LockedSnapshot:
    """A commit on the Hub, and those of its files that are served, by path."""

    commit: str
    files: Mapping[str, LockedFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


MAX_ADAPTERS = 256
MAX_ADAPTER_NAME = 64


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of a model: what requests call it, and where it comes from; ``locked`` and
    ``places`` are as a ModelSpec's.
    """

    name: str
    source: Source
    revision: str | None
    locked: LockedSnapshot | None = None
    places: Mapping[str, Node] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Arm:
    """``weight`` percent of a model's requests, and the entry that answers them."""

    name: str
    model: str
    weight: Fraction


@dataclass(frozen=True)
class Canary:
    """Who shares a model's requests; ``sticky`` names what keeps like requests with one arm."""

    arms: tuple[Arm, ...]
    sticky: str | None = None


@dataclass(frozen=True)
class ModelSpec:
    """One entry of ``models:``, complete: defaults merged in, every value checked.

    ``locked`` is the snapshot that models.lock has for a Hub model; ``places`` are the given keys
    with their lines, for errors found later. ``arm_of`` is the entry whose canary defines this one,
    None for an entry of its own. ``adapter`` is the adapter's name if this stands for one (see
    ``parts``). ``gguf_file`` is the one file that is loaded of the source; of a local one it is its
    name, and the source its path.
    ``load`` says when it is loaded; one ``on_demand`` may go when nobody asked it for ``idle_s``.
    ``adapters_from`` is where adapters may come from that requests load; ``ORG/*`` is all that ORG
    has on the Hub.
    """

    name: str
    task: str
    source: Source
    revision: str | None
    dtype: str
    device_map: str | None
    trust_remote_code: bool
    allow_pickle: bool
    allow_missing_weights: bool
    max_batch_size: int
    dynamic_batching: DynamicBatching | None
    instance_groups: tuple[InstanceGroup, ...]
    version_policy: VersionPolicy | None
    streaming: bool
    hooks: HooksFile | None
    python_env: PythonEnv | None
    metrics: tuple[Metric, ...]
    response_cache: ResponseCache | None
    ensemble: Ensemble | None
    options: Mapping[str, object]
    locked: LockedSnapshot | None = None
    places: Mapping[str, Node] = field(default_factory=dict, compare=False, repr=False)
    canary: Canary | None = None
    layout: str = "single"
    arm_of: str | None = None
    quantization: Quantization | None = None
    adapters: tuple[Adapter, ...] = ()
    adapters_from: tuple[Source, ...] = ()
    max_loaded_adapters: int | None = None
    served_names: tuple[str, ...] = ()
    adapter: str | None = None
    gguf_file: str | None = None
    load: str = "always"
    idle_s: int | None = None

    @property
    def takes_adapters(self) -> bool:
        """Whether it has adapters, or may get some while it serves."""
        return bool(self.adapters or self.adapters_from)

    @property
    def local_folders(self) -> Iterator[tuple[Node, Path]]:
        """What lies on this machine of what models.yaml names, each with its place there."""
        for part in self.parts:
            if part.source.folder is not None:
                yield part.places["model"], part.source.folder
        places = scalars(self.places["adapters_from"]) if self.adapters_from else ()
        for place, source in zip(places, self.adapters_from, strict=True):
            if source.folder is not None:
                yield place, source.folder

    @property
    def parts(self) -> tuple[ModelSpec, ...]:
        """Everything with files of its own: the model, and each adapter as if it were a model."""
        return (
            self,
            *(replace(self._part(one), adapter=one.name) for one in self.adapters),
        )

    def _part(self, part: Adapter) -> ModelSpec:
        return replace(
            self,
            source=part.source,
            revision=part.revision,
            locked=part.locked,
            places=part.places,
            adapters=(),
            adapters_from=(),
            gguf_file=None,
        )

    @property
    def title(self) -> str:
        """The model, or what of it this stands for, as messages name it."""
        return self.name if self.adapter is None else f"{self.name}, adapter {self.adapter}"
