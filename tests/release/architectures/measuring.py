"""Measures one model type: a tiny model of it is loaded and served as models.yaml's would be, and
its greedy tokens are compared with those of ``generate``, prompt by prompt.

Prompts are of mixed lengths; they are computed in chunks, some wait or join in mid-flight, and two
begin like an earlier one.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import reason
from hf_triton.runtime.fused.reading.attention import stable_length
from hf_triton.text_generation.engine.own_logits import difference, own_logits
from hf_triton.text_generation.generation_loading import ModelParts, load_parts, start_engine
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sequence.source import Source
from tests.support.architectures.configurations import CONTEXT, VARIANTS, tiny_config
from tests.support.architectures.media import Images, images_of
from tests.support.driving import generate_all
from tests.support.served_models import served_model
from tests.support.tiny_models import Asked, with_large_weights

DTYPES = ("float32", "bfloat16")
KINDS = ("causal", "sequence-to-sequence", "image-text")
VERDICTS = ("wrong", "random", "near tie", "equal")  # the worst first
RIGHT = VERDICTS[2:]
_OPTIONS: dict[str, Any] = {"max_num_seqs": 3, "max_num_batched_tokens": 16}
_LENGTHS = (60, 3, 17, 1)
_MAX_TOKENS = 10
_IDS = (3, 180)  # of prompts: no special tokens
# Shares of the logits' range: a token is as likely as the likeliest, up to rounding.
_TIES = {torch.float32: 1e-3, torch.bfloat16: 0.08}  # as a runner may differ at most
Changed = Callable[[Any], AbstractContextManager[None]]
_PLACEMENT = Placement("cpu", {"": "cpu"})
_CHANGING = (
    "eos_token_id forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens "
    "no_repeat_ngram_size encoder_no_repeat_ngram_size max_length min_length"
)


@dataclass(frozen=True)
class Row:
    """A model type's line in the table. ``runner``: the in-flight engine's, or the kind of the
    generate engine's batches, or ``-`` if it does not load; two where dtypes differ.
    ``tokens``, for each of DTYPES: one of VERDICTS (``random``: the model's own differ from run to
    run) or ``-``. ``why`` it is not in flight, or does not load.
    """

    kind: str
    name: str
    runner: str
    tokens: tuple[str, ...]
    why: str

    @property
    def has_text_alone(self) -> bool:
        """True if an image-text type was measured without images."""
        return "text alone" in self.runner

    @property
    def is_in_flight(self) -> bool:
        return self.runner != "-" and "generate" not in self.runner


def names_of(kind: str) -> list[str]:
    """The model types of a kind that the installed transformers has, and variants of them."""
    return sorted(classes_of(kind))


def classes_of(kind: str) -> dict[str, Any]:
    """The classes of each model type of a kind, by name; a variant counts as a class of its own."""
    from transformers.models.auto import modeling_auto as auto

    mappings: dict[str, Any] = {
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "sequence-to-sequence": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "image-text": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    variants = VARIANTS if kind == "causal" else {}
    own = {name: name for name in variants if name.split(":")[0] in mappings[kind]}
    return {**mappings[kind], **own}


def measure(kind: str, name: str, folder: Path, dtypes: Sequence[str] = DTYPES) -> Row:
    """The row of a model type; ``folder`` is an empty one, for its weights."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _save(kind, name, folder / "weights")
    except Exception as error:  # noqa: BLE001 - whatever an architecture raises
        return Row(kind, name, "-", ("-",) * len(dtypes), f"not built: {_line(error)}")
    images, refused = _images(kind, folder)
    found = [_judged(kind, folder, dtype, images) for dtype in dtypes]
    runners = list(dict.fromkeys(runner for runner, _, _ in found))
    if refused and runners != ["-"]:
        runners = [f"{runner}, text alone" for runner in runners]
    whys = [*dict.fromkeys(why for _, _, why in found if why), *([refused] if refused else [])]
    tokens = tuple(verdict for _, verdict, _ in found)
    why = "; ".join(whys).replace(f"{folder}/", "")
    return Row(kind, name, " / ".join(runners), tokens, why)


def _images(kind: str, folder: Path) -> tuple[Images | None, str]:
    """A maker of a saved model's prompts with images or sounds, or the reason that none works."""
    if kind == "causal":
        return None, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = _load(kind, folder, "float32").model
            return (None, "") if model.config.is_encoder_decoder else (images_of(model), "")
        except Exception as error:  # noqa: BLE001 - whatever an architecture raises
            return None, f"no images: {reason(error, 300)}"


def _judged(kind: str, folder: Path, dtype: str, images: Images | None) -> tuple[str, str, str]:
    """As ``_served``. In bfloat16 rounding also decides between experts that score alike, and
    another expert is another text: tokens that differ are compared once more where none is chosen.
    """
    found = _served(kind, folder, dtype, images)
    if dtype == DTYPES[0] or found[1] != "wrong":
        return found
    again = _served(kind, folder, dtype, images, _given_experts)
    return found if again[1] not in RIGHT else (found[0], "near tie", found[2])


def _served(
    kind: str, folder: Path, dtype: str, images: Images | None, changed: Changed = nullcontext
) -> tuple[str, str, str]:
    """A saved model's runner, how its tokens compare, and why it is not in flight; the model is
    ``changed`` while it generates.
    """
    with warnings.catch_warnings(), _logged() as lines:
        warnings.simplefilter("ignore")
        try:
            parts = replace(_load(kind, folder, dtype), media=cast(Any, images))
            asked = _asked(parts.model, images)
            with changed(parts.model):
                expected = [_reference(parts.model, one) for one in asked]
            engine: Any = start_engine("tiny", parts, Options(**_OPTIONS), _PLACEMENT, 1)
        except Exception as error:  # noqa: BLE001
            return "-", "-", f"does not load: {_line(error)}"
        why = "; ".join(line.partition("because ")[2] for line in lines if "because " in line)
        is_in_flight = engine.name == "in_flight"
        runner = engine.runner.name if is_in_flight else f"generate, {engine.batches.value}"
        try:
            with changed(parts.model):
                got = generate_all(engine, asked, at_first=4)
        except Exception as error:  # noqa: BLE001
            return runner, "wrong", _line(error)
        finally:
            engine.stop()
    with ExitStack() as changes:

        def load() -> Any:
            model = _load(kind, folder, dtype).model
            changes.enter_context(changed(model))
            return model

        verdicts = {
            _verdict(one, *own, ours, load, has_images=images is not None)
            for one, own, ours in zip(asked, expected, got, strict=True)
        }
    return runner, next(one for one in VERDICTS if one in verdicts), why


@contextmanager
def _given_experts(model: Any) -> Iterator[None]:
    """Each token gets the first experts, whichever it chooses, by the weights of its own choice in
    order, which change little where it chooses another that scores alike.
    """

    def give(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x, chosen, weights = args
        first = torch.arange(chosen.shape[-1]).expand_as(chosen)
        return x, first, weights.sort(dim=-1, descending=True).values

    with ExitStack() as hooks:
        for module in model.modules():
            if hasattr(module, "has_post_expert_norm"):  # experts of transformers' interface
                hooks.callback(module.register_forward_pre_hook(give).remove)
        yield


def _save(kind: str, name: str, weights: Path) -> None:
    """A checkpoint of the type with random weights, and a tokenizer of numbers."""
    config = tiny_config(name)
    torch.manual_seed(0)
    model = with_large_weights(_auto_class(kind).from_config(config))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2 and parameter.is_floating_point():  # norms, biases, sinks
                parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
    own = model.generation_config
    if model.config.is_encoder_decoder and own.decoder_start_token_id is None:
        own.decoder_start_token_id = 2
    for field in _CHANGING.split():
        if getattr(own, field, None) is not None:
            setattr(own, field, None)
    model.save_pretrained(weights)
    if type(model.config) is not type(config):  # a checkpoint's file describes the whole model
        config.save_pretrained(weights)
    _save_tokenizer(weights, int(model.config.get_text_config().vocab_size))


def _save_tokenizer(weights: Path, size: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({str(n): n for n in range(size)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="0").save_pretrained(weights)


def _auto_class(kind: str) -> Any:
    import transformers

    classes = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText")
    return getattr(transformers, dict(zip(KINDS, classes, strict=True))[kind])


def _load(kind: str, folder: Path, dtype: str) -> ModelParts:
    """As the server loads it, without the processor of an image-text model."""
    place = folder / "repository" / "tiny"
    place.mkdir(parents=True, exist_ok=True)
    served = served_model(place, model="../../weights", local=True, dtype=dtype)
    torch.manual_seed(0)
    if kind != "image-text":
        return load_parts(served, _PLACEMENT)
    from transformers import AutoTokenizer

    model = _auto_class(kind).from_pretrained(folder / "weights", dtype=getattr(torch, dtype))
    tokenizer = AutoTokenizer.from_pretrained(folder / "weights")
    return ModelParts(model.config, tokenizer, model.eval())


def _asked(model: Any, images: Images | None) -> list[Asked]:
    """Four prompts, one that begins like the first, and the first again; of an image-text model,
    three of them with an image.
    """
    if images is not None:
        return _asked_with(images)
    draw = random.Random(5)
    most = (stable_length(model.config.get_text_config()) or CONTEXT) - _MAX_TOKENS
    if getattr(model.config, "max_position_embeddings", CONTEXT) < CONTEXT:
        most = model.config.max_position_embeddings - _MAX_TOKENS
    prompts = [[draw.randint(*_IDS) for _ in range(min(length, most))] for length in _LENGTHS]
    prompts += [prompts[0][: most // 2][:40] + [draw.randint(*_IDS) for _ in range(6)], prompts[0]]
    return [Asked(prompt, _MAX_TOKENS) for prompt in prompts]


def _asked_with(images: Images) -> list[Asked]:
    draw = random.Random(5)
    texts = [[draw.randint(*_IDS) for _ in range(length)] for length in (3, 20)]
    first, source = images.prompt(24, 12, 1)
    other, other_source = images.prompt(24, 12, 3)
    small, small_source = images.prompt(5, 9, 2)
    return [
        Asked(first, _MAX_TOKENS, source),
        Asked(texts[0], _MAX_TOKENS),
        Asked(small, _MAX_TOKENS, small_source),
        Asked(texts[1], _MAX_TOKENS),
        Asked(other, _MAX_TOKENS, other_source),
        Asked(first, _MAX_TOKENS, source),
    ]


@torch.inference_mode()
def _reference(model: Any, one: Asked) -> tuple[list[int], torch.Tensor]:
    """``generate``'s greedy tokens of one prompt alone, and their logits (tokens, vocab)."""
    cpu = torch.device("cpu")
    inputs = {} if one.source is None else one.source.on(cpu, model.dtype)
    output = model.generate(
        torch.tensor([one.prompt]),
        attention_mask=torch.ones(1, len(one.prompt), dtype=torch.int64),
        max_new_tokens=one.max_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **inputs,
    )
    return output.sequences[0, -one.max_tokens :].tolist(), torch.cat(output.logits).float()


def _verdict(
    one: Asked,
    tokens: list[int],
    logits: torch.Tensor,
    ours: tuple[int, ...],
    load: Callable[[], Any],
    *,
    has_images: bool,
) -> str:
    """Compares our tokens with the reference's, up to the first that is as likely; ``load`` gives
    the model as it was.
    """
    if list(ours) == tokens:
        return "equal"
    pairs = enumerate(zip(tokens, ours, strict=False))
    at = next((n for n, (own, other) in pairs if own != other), None)
    if at is None:
        return "wrong"
    model = load()
    regret = _regret(logits[at], ours[at])
    noise = 0.0 if one.source else _noise(model, one.prompt + tokens[:at], logits[at])
    if regret > noise and has_images:
        noise = max(noise, _noise_beside_images(one, model, tokens[:at], logits[at]))
    if regret <= max(_TIES[model.dtype], noise):
        return "near tie"
    model = load()
    torch.manual_seed(1)
    again = _reference(model, one)[0]
    if again == list(ours):  # what it computed before changed its answer (RecurrentGemma)
        return "equal"
    return "random" if again != tokens else "wrong"


def _noise(model: Any, tokens: list[int], logits: torch.Tensor) -> float:
    """In bfloat16, what the model's own logits after these tokens change by where half of them are
    decoded one by one.
    """
    if model.dtype == torch.float32 or model.config.is_encoder_decoder or len(tokens) < 2:
        return 0.0
    half = len(tokens) // 2
    first = torch.tensor([tokens[:half]])
    decoded = own_logits(model, [tokens[half:]], first, attention_mask=torch.ones_like(first))
    return difference(decoded[0, -1], logits)


def _noise_beside_images(one: Asked, model: Any, forced: list[int], logits: torch.Tensor) -> float:
    """In bfloat16, what the model's own logits after a prompt and these tokens change by where
    attention is computed by other kernels, or all in float32: where experts are chosen, half of
    their range and more.
    """
    if model.dtype == torch.float32:
        return 0.0
    found = []
    for other in (model, copy.deepcopy(model).float()):
        other.set_attn_implementation("eager")
        prompt = torch.tensor([one.prompt])
        inputs = (one.source or Source({}, 0)).on(torch.device("cpu"), other.dtype)
        with suppress(RuntimeError):  # parts keep their dtype
            own = own_logits(
                other, [[*forced, 0]], prompt, attention_mask=torch.ones_like(prompt), **inputs
            )
            found.append(difference(logits, own[0, len(forced)]))
    return max(found, default=0.0)


def _regret(logits: torch.Tensor, token_id: int) -> float:
    """A token's distance from the likeliest one, as a share of the logits' range."""
    known = logits[logits > torch.finfo(torch.bfloat16).min / 2]
    span = (known.max() - known.min()).clamp_min(1e-6)
    return float((logits.max() - logits[token_id]) / span)


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Collects the lines that are logged meanwhile."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "info", lines.append)
        yield lines


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {reason(error, 140)}"
