"""Loads a served model: files, tokenizer, weights, task, and a matching runner."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.devices.cuda_capture import capture_on_stream
from hf_triton.runtime.devices.device import Placement, check_device_works
from hf_triton.runtime.devices.prepacked_linear import prepack
from hf_triton.runtime.errors import LoadError, not_as_generated, reason
from hf_triton.runtime.tokenizing.lengths import NO_LIMIT, num_positions
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.runtime.weights.weight_loading import load_config, load_model, load_tokenizer

from .engine.encoder_engine import EncoderEngine
from .options import EncoderOptions
from .runners.encoder_runner import Runner, RunnerSetup, random_encodings, select_runner
from .runners.packed_runner import PackedRunner
from .runners.padded_runner import EQUAL_LENGTHS, PADDED, PaddedRunner
from .sentence_transformers.reading import read_sentence_files
from .task import EncoderTask, TaskSetup
from .texts.encoding import set_padding
from .texts.tokenization import Tokenization

_WARM_UP_LENGTHS = (8, 32, 128, 128)
_LONGEST_TRIED = 1024  # tokens: longer ones would take seconds of every load
# Tokens where no limit is known: the time of attention grows with their square.
_DEFAULT_MAX_LENGTH = 8192


@dataclass(frozen=True)
class LoadedEncoder:
    engine: EncoderEngine
    task: EncoderTask
    options: EncoderOptions
    description: str


class EncoderFiles:
    """What the files of a served model say of it: sentence-transformers' own, and transformers'
    configuration, with the class of transformers that loads the weights.
    """

    def __init__(
        self, served: ServedModel, options: EncoderOptions, task_class: type[EncoderTask]
    ) -> None:
        """Raises LoadError."""
        import transformers

        self.served, self.options, self._task_class = served, options, task_class
        try:
            self.saved = read_sentence_files(model_files(served), task_class.saved_as)
        except LoadError as error:
            raise LoadError(f"{served.source}: {error}") from None
        self.config = load_config(served, self.saved.folder, self.saved.config_kwargs)
        auto_class = task_class.auto_class_of(self.config, self.saved, options)
        self.model_class = getattr(transformers, auto_class)

    def task(self, model: Any) -> EncoderTask:
        """The task with its tokenizer; the model may have no weights. Raises LoadError."""
        saved, asked = self.saved, self.options.max_length
        tokenizer = load_tokenizer(self.served, saved.folder, saved.processor_kwargs)
        if saved.do_lower_case:
            _lower_texts(tokenizer)
        tokenization = Tokenization(
            tokenizer,
            max_length=longest_input(model, tokenizer, asked, saved.max_length),
            truncation=self.options.truncation,
            has_token_types=takes_token_types(model, tokenizer),
            num_embeddings=_fewer_embeddings(model, tokenizer),
            adds_special_tokens=saved.adds_special_tokens,
            cuts=saved.cuts,
        )
        if self.options.OUTPUT == "sequences":
            set_padding(model.config, tokenizer)
        batched = self.served.max_batch_size > 0
        return self._task_class(TaskSetup(self.options, model.config, saved, tokenization, batched))

    def setup(self, placement: Placement) -> tuple[RunnerSetup, EncoderTask]:
        """The model as transformers loads it, and what the task makes of it. Raises LoadError."""
        folder = self.saved.folder
        model = load_model(self.served, folder, self.model_class, self.config, placement)
        task = self.task(model)
        setup = RunnerSetup(
            model,
            torch.device(placement.device),
            task.output,
            task.setup.tokenization.max_length,
            has_token_types=task.setup.tokenization.has_token_types,
            hides_tokens=task.hides_tokens,
        )
        return setup, task

    def load(
        self,
        placement: Placement,
        num_threads: int,
        step: Callable[[EncoderTask], EncoderTask] = lambda task: task,
    ) -> LoadedEncoder:
        """Loads everything and starts the engine; ``step`` makes a step of an ensemble of the
        task. Raises LoadError.
        """
        setup, whole = self.setup(placement)
        task = step(whole)
        engine = EncoderEngine(
            partial(ready_runner, setup, self.served, self.options),
            task.reduce,
            max_num_batched_tokens=self.options.max_num_batched_tokens,
            num_threads=num_threads,
            watchdog_s=self.options.watchdog_s,
            check_device=partial(check_device_works, setup.device),
        )
        engine.thread.start()
        dtype = str(setup.model.dtype).removeprefix("torch.")
        where = f"({dtype}) on {placement.device}, {engine.runner.name}"
        return LoadedEncoder(engine, task, self.options, f"{self.served.source} {where}")


def _lower_texts(tokenizer: Any) -> None:
    """Makes the tokenizer lower-case texts, except special tokens in them."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    given: Any = backend.normalizer
    is_several = isinstance(given, Sequence)
    steps = [*given] if is_several else [] if given is None else [given]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


def ready_runner(setup: RunnerSetup, served: ServedModel, options: EncoderOptions) -> Runner:
    """The runner that serves, warmed up; made on the engine's thread. Raises LoadError."""
    if options.engine not in RUNNERS:
        raise not_as_generated("model.json", f"options: engine {options.engine} is unknown")
    runner = RUNNERS[options.engine](setup, served, options)
    for length in _WARM_UP_LENGTHS:
        runner.forward(random_encodings(setup, [length]))
    runner.forward(random_encodings(setup, _WARM_UP_LENGTHS))
    try:
        if setup.max_length <= _LONGEST_TRIED:
            runner.forward(random_encodings(setup, [setup.max_length]))
    except Exception as error:  # its configuration states too much
        raise LoadError(
            f"max_length: the model fails at {setup.max_length} tokens, its longest input: "
            f"{type(error).__name__}: {reason(error)}; set the option max_length to less"
        ) from error
    return runner


def torch_runner(setup: RunnerSetup, served: ServedModel, options: EncoderOptions) -> Runner:
    """Fused or packed where the model allows it, else padded; prepacked weights on a CPU, CUDA
    graphs on a GPU.
    """
    if setup.device.type == "cuda":
        make = partial(PaddedRunner, capture=capture_on_stream(setup.device))
        graphs = RunnerSpec(f"{PADDED.name}, CUDA graphs", make)
        return select_runner(setup, (graphs, PADDED, EQUAL_LENGTHS))
    prepacked = cache(partial(prepack, setup.model, many_rows=True))

    def fused(setup: RunnerSetup) -> Runner:
        from .fused.fused_encoder_runner import FusedRunner

        prepacked()  # the layers it reads
        return FusedRunner(setup)

    candidates = (RunnerSpec("fused", fused), PackedRunner, PADDED, EQUAL_LENGTHS)
    runner = select_runner(setup, candidates)
    prepacked()
    return runner


def longest_input(model: Any, tokenizer: Any, asked: int | None, saved: int | None = None) -> int:
    """The most tokens of one input: ``asked``, else what model and tokenizer hold; ``saved``
    replaces the tokenizer's own number. Raises LoadError where more is asked than the model holds.
    """
    limit = num_positions(model)
    if asked is not None:
        if limit is not None and asked > limit:
            raise LoadError(f"max_length: got {asked}, the model's own limit is {limit} tokens")
        return asked
    if saved is not None:
        return min(saved, limit or saved)
    # Relative positions never end: T5's files say how long its texts were in n_positions.
    trained = getattr(model.config.get_text_config(), "n_positions", None)
    limits = (limit or trained, getattr(tokenizer, "model_max_length", None))
    return min((int(n) for n in limits if n and 0 < n < NO_LIMIT), default=_DEFAULT_MAX_LENGTH)


def takes_token_types(model: Any, tokenizer: Any) -> bool:
    """Returns True if the tokenizer marks the texts of a pair and the model reads the marks. A
    model with a single token type does not, whatever its forward accepts.
    """
    known = inspect.signature(model.forward).parameters
    uses = "token_type_ids" in known and getattr(model.config, "type_vocab_size", 2) != 1
    return uses and "token_type_ids" in tokenizer.model_input_names


def _fewer_embeddings(model: Any, tokenizer: Any) -> int | None:
    """The number of the model's token embeddings, if the tokenizer makes ids beyond them."""
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        return None
    known = getattr(table, "num_embeddings", None)
    num_made = max(tokenizer.get_vocab().values(), default=0) + 1
    if known is None or num_made <= known:
        return None
    log.warn(
        f"the tokenizer makes {num_made} tokens, the model knows {known}: texts with another one "
        "will be refused"
    )
    return int(known)


def _onnx_runner(setup: RunnerSetup, served: ServedModel, options: EncoderOptions) -> Runner:
    from .onnx.onnx_runner import onnx_runner

    runner = onnx_runner(setup, served, options)
    setup.model.to("meta")  # its weights are no longer needed
    return runner


RUNNERS: dict[str, Callable[[RunnerSetup, ServedModel, EncoderOptions], Runner]] = {
    "torch": torch_runner,
    "onnxruntime": _onnx_runner,
}
