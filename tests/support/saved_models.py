"""Tiny models with the files that sentence-transformers saves, and what its release 6.2 answers.

The folders are the same at every call and on every machine. saved_answers.json has the numbers;
``python -m tests.support.saved_models`` asks sentence-transformers again and writes them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.support.installed import environment_with, run_in
from tests.support.tiny_encoders import tiny_tokenizer
from tests.support.tiny_models import T5_SHAPE

ANSWERS = Path(__file__).with_name("saved_answers.json")
REQUIREMENTS = ("sentence-transformers==6.2.0", "transformers==5.23.0", "torch==2.13.0")
_DRIVER = Path(__file__).parents[1] / "release/clients/drivers/drive_sentence_transformers.py"
NUM_KEPT = 6  # numbers of each answer
_HIDDEN = 32
_SHAPE = {
    "hidden_size": _HIDDEN,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
}
_DECODER = {**_SHAPE, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
_T5 = {**T5_SHAPE, "decoder_start_token_id": 0, "pad_token_id": 0}
_SHAPES = {"bert": _SHAPE, "qwen3": _DECODER, "t5": _T5, "mt5": _T5}
TEXTS = ("the cat sat", "Paris is THE capital", "a dog ran to the big red house . good")
LONG = "the cat never sat on a green mat , it ran and ran to the old house of Peter ? " * 2
PAIRS = (("who is Anna", "she lives in London"), ("what is blue", "the sky is blue"))


@dataclass(frozen=True)
class Case:
    """``shape`` and ``head`` are transformers' model type and class; ``whole`` is
    config_sentence_transformers.json, ``transformer`` sentence_bert_config.json. ``first``
    and ``later`` are the modules after the transformer. Late interaction's first text is a query.
    """

    shape: str = "bert"
    head: str = "AutoModel"
    template: str | None = None
    folder: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    transformer: Mapping[str, Any] = field(default_factory=dict)
    pooling: Mapping[str, Any] = field(default_factory=dict)
    later: tuple[str, ...] = ()
    first: tuple[str, ...] = ("Pooling",)
    mask: Mapping[str, Any] = field(default_factory=dict)
    dense: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[Any, ...] = TEXTS
    prompt_name: str | None = None

    @property
    def is_cross_encoder(self) -> bool:
        return self.head == "AutoModelForSequenceClassification"

    @property
    def kind(self) -> str:
        """sentence-transformers' class."""
        if self.is_cross_encoder:
            return "CrossEncoder"
        saved = str(self.whole.get("model_type", "SentenceTransformer"))
        return "MultiVectorEncoder" if saved == "ColBERT" else saved

    @property
    def modules(self) -> tuple[str, ...]:
        return () if self.is_cross_encoder else (*self.first, *self.later)


def _modalities(output: str) -> dict[str, Any]:
    return {"text": {"method": "forward", "method_output_name": output}}


def embedder(**transformer: Any) -> dict[str, Any]:
    """sentence_bert_config.json as release 6 writes it."""
    return {
        "transformer_task": "feature-extraction",
        "modality_config": _modalities("last_hidden_state"),
        "module_output_name": "token_embeddings",
        **transformer,
    }


def reranker(**transformer: Any) -> dict[str, Any]:
    """The same of a cross-encoder."""
    return {
        "transformer_task": "sequence-classification",
        "modality_config": _modalities("logits"),
        "module_output_name": "scores",
        **transformer,
    }


def _scores(function: str, **whole: Any) -> dict[str, Any]:
    return {
        "model_type": "CrossEncoder",
        "activation_fn": f"torch.nn.modules.{function}",
        "prompts": {},
        "default_prompt_name": None,
        **whole,
    }


_ASKED = {"prompts": {"query": "who is it ?"}, "default_prompt_name": "query"}
_LAST = {"pooling_mode": "lasttoken"}
_SKIPPED = {"prompts": {"query": "who is "}, "default_prompt_name": "query"}
_FLAGS = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
_IDENTITY, _SIGMOID = _scores("linear.Identity"), _scores("activation.Sigmoid")


def sparse(pooling: Mapping[str, Any], **more: Any) -> Case:
    transformer = embedder(
        transformer_task="fill-mask", modality_config=_modalities("logits"), **more
    )
    whole = {"model_type": "SparseEncoder", "max_active_dims": 20}
    first = ("SpladePooling",)
    head = "AutoModelForMaskedLM"
    return Case(head=head, whole=whole, transformer=transformer, pooling=pooling, first=first)


def late(expansion: Mapping[str, Any] | None, **more: Any) -> Case:
    """Of late interaction, as release 6 writes it."""
    more = {"document_length": 12, "query_expansion": expansion, **more}
    return Case(
        whole={"model_type": "MultiVectorEncoder", "prompts": {"query": "who ", "document": "a "}},
        transformer=embedder(**more),
        first=("Dense", "MultiVectorMask"),
        later=("Normalize",),
        dense={"bias": False, "activation_function": "torch.nn.Identity"},
        mask={"skiplist_words": [".", "the", "nowhere"]},
        texts=(*TEXTS, TEXTS[0]),
    )


def pylate(**whole: Any) -> Case:
    """The same as PyLate writes it."""
    named = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "skiplist_words": [".", "ran"]}
    lengths = {"query_length": 14, "document_length": 12}
    return Case(
        whole={
            "model_type": "ColBERT",
            "similarity_fn_name": "MaxSim",
            **named,
            **lengths,
            **whole,
        },
        transformer={"max_seq_length": 11, "do_lower_case": False},
        first=("Dense",),
        dense={"bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
        texts=(*TEXTS, TEXTS[0]),
    )


def cross(
    shape: str = "bert",
    *,
    whole: Mapping[str, Any] = _IDENTITY,
    transformer: Mapping[str, Any] | None = None,
    texts: tuple[Any, ...] = PAIRS,
    prompt_name: str | None = None,
    **config: Any,
) -> Case:
    """A cross-encoder of one label."""
    return Case(
        shape,
        "AutoModelForSequenceClassification",
        config={"num_labels": 1, **config},
        whole=whole,
        transformer=reranker() if transformer is None else transformer,
        texts=texts,
        prompt_name=prompt_name,
    )


CASES: dict[str, Case] = {
    "release 5": Case(transformer={"max_seq_length": 256, "do_lower_case": False}),
    "release 6": Case(transformer=embedder(), whole=_ASKED, later=("Normalize",)),
    **{
        f"pooling_mode_{flag}": Case(pooling={f"pooling_mode_{flag}": True, "include_prompt": True})
        for flag in (*_FLAGS, "lasttoken")
    },
    **{
        f"include_prompt, {mode}": Case(
            pooling={"pooling_mode": mode, "include_prompt": False}, whole=_SKIPPED
        )
        for mode in ("mean", "cls", "weightedmean")
    },
    "two flags": Case(
        pooling={"pooling_mode_weightedmean_tokens": True, "pooling_mode_cls_token": True},
        later=("Dense",),
        dense={"in_features": 2 * _HIDDEN, "activation_function": "torch.nn.Identity"},
    ),
    "two modes": Case(
        pooling={"pooling_mode": ["weightedmean", "cls"]},
        later=("Dense",),
        dense={"in_features": 2 * _HIDDEN, "activation_function": "torch.nn.Identity"},
    ),
    "LayerNorm": Case(later=("LayerNorm", "Normalize")),
    "Dense, GELU": Case(
        later=("Dense",), dense={"activation_function": "torch.nn.modules.activation.GELU"}
    ),
    "Dense, residual": Case(later=("Dense",), dense={"bias": False, "use_residual": True}),
    "Dense, residual, as wide": Case(
        later=("Dense",), dense={"out_features": _HIDDEN, "use_residual": True}
    ),
    "truncate_dim": Case(
        transformer=embedder(), whole={"truncate_dim": 8}, later=("Dense", "Normalize")
    ),
    "truncate_dim, larger": Case(transformer=embedder(), whole={"truncate_dim": 64}),
    "0_Transformer": Case(folder="0_Transformer", transformer={"max_seq_length": 12}),
    "do_lower_case": Case(
        transformer={"max_seq_length": None, "do_lower_case": True},
        texts=("THE CAT [SEP] SAT", "The [MASK] is [UNK]", "paris"),
    ),
    "max_seq_length, longer": Case(transformer={"max_seq_length": 200}, texts=(LONG * 5, "a")),
    "text.max_length": Case(
        transformer=embedder(processing_kwargs={"text": {"max_length": 7}}), texts=(LONG, "a")
    ),
    "add_special_tokens": Case(
        transformer=embedder(processing_kwargs={"common": {"add_special_tokens": False}}),
        texts=(*TEXTS, LONG * 5),
    ),
    "add_eos_token": Case(
        shape="qwen3",
        pooling=_LAST,
        transformer={"max_seq_length": 64, "tokenizer_args": {"add_eos_token": True}},
    ),
    "processor_kwargs": Case(
        transformer=embedder(
            processor_kwargs={"model_max_length": 9, "truncation_side": "left"},
            config_kwargs={"hidden_act": "relu"},
            model_kwargs={"torch_dtype": "float32"},
        ),
        texts=(LONG, "a"),
    ),
    "T5 alone": Case("t5", "AutoModelForTextEncoding", later=("Dense", "Normalize")),
    "mT5 alone": Case("mt5", "AutoModelForTextEncoding", transformer={"max_seq_length": 9}),
    "T5 whole": Case("t5", "AutoModelForSeq2SeqLM", transformer=embedder()),
    "template without messages": Case(
        "qwen3", template="messages", pooling=_LAST, transformer={"max_seq_length": 64}
    ),
    "sparse, max": sparse({"pooling_strategy": "max"}),
    "sparse, sum": sparse({"pooling_strategy": "sum", "activation_function": "log1p_relu"}),
    "late": late({"strategy": "fixed", "attend": False, "token": None, "length": 14}),
    "late, seen": late({"strategy": "min", "attend": True, "token": "cat", "length": 9}),
    "late, as it is": late(None, query_length=6),
    "PyLate": pylate(),
    "PyLate, seen": pylate(attend_to_expansion_tokens=True),
    "PyLate, as it is": pylate(do_query_expansion=False),
    "cross-encoder, Identity": cross(),
    "cross-encoder, Sigmoid": cross(whole=_SIGMOID, problem_type="regression"),
    "cross-encoder, Tanh": cross(whole=_scores("activation.Tanh")),
    "cross-encoder, none": cross(
        whole={**_IDENTITY, "activation_fn": None}, problem_type="regression"
    ),
    "cross-encoder, prompt": cross(whole={**_IDENTITY, **_ASKED}),
    "cross-encoder, named prompt": cross(
        whole={**_IDENTITY, "prompts": {"who": "who is it ?"}}, prompt_name="who"
    ),
    "cross-encoder, only_second": cross(
        transformer=reranker(
            processing_kwargs={"text": {"max_length": 12, "truncation": "only_second"}}
        ),
        texts=(("who is Anna", LONG),),
    ),
    "cross-encoder, release 5": cross(
        whole={},
        transformer={},
        sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"},
    ),
}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def save(case: Case, folder: Path) -> Path:
    """A case's files."""
    root = folder / case.folder
    tokenizer = tiny_tokenizer("distilbert")
    if "add_eos_token" in str(case.transformer):
        tokenizer.backend_tokenizer.post_processor = None
    tokenizer.chat_template = case.template
    tokenizer.add_tokens([one for key, one in case.whole.items() if key.endswith("_prefix")])
    shape = {"vocab_size": len(tokenizer), **_SHAPES[case.shape], **case.config}
    config = transformers.AutoConfig.for_model(case.shape, **shape)
    if case.head == "AutoModelForTextEncoding":
        config.is_encoder_decoder = False  # as its class saves it
    model = getattr(transformers, case.head).from_config(config)
    fill(model)
    model.save_pretrained(root)
    tokenizer.save_pretrained(root)
    kinds = ["Transformer", *case.modules]
    paths = [case.folder, *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    if not case.transformer and case.is_cross_encoder:
        return folder  # releases before 6 saved no modules of a cross-encoder
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{package}.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        for package in [_PYLATE if kind == "Dense" and len(kinds) == 2 else _MODULES[kind]]
    ]
    write_json(folder / "modules.json", modules)
    write_json(root / "sentence_bert_config.json", case.transformer)
    write_json(folder / "config_sentence_transformers.json", case.whole)
    for kind, path in zip(case.modules, paths[1:], strict=True):
        _save_module(kind, folder / path, case)
    return folder


_PYLATE = "pylate.models.Dense"
_MODULES = {
    **dict.fromkeys(
        ("Transformer", "Dense", "LayerNorm", "Normalize"), "sentence_transformers.models"
    ),
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling",
    "SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask",
}


def _save_module(kind: str, folder: Path, case: Case) -> None:
    """A module after the transformer: its configuration and its weights."""
    from safetensors.torch import save_file

    tokens = {"module_input_name": "token_embeddings"} if case.first[0] == "Dense" else {}
    if kind == "Normalize" and tokens:
        write_json(folder / "config.json", tokens)
    if kind in ("Pooling", "SpladePooling", "MultiVectorMask"):
        config = case.mask if kind == "MultiVectorMask" else case.pooling
        size = {"word_embedding_dimension": _HIDDEN} if kind == "Pooling" else {}
        write_json(folder / "config.json", {**size, **config})
    if kind not in ("Dense", "LayerNorm"):
        return
    modules: dict[str, torch.nn.Module] = {}
    if kind == "LayerNorm":
        modules["norm"], config = torch.nn.LayerNorm(_HIDDEN), {"dimension": _HIDDEN}
    else:
        config = {"in_features": _HIDDEN, "out_features": 16, **case.dense}
        sizes = int(config["in_features"]), int(config["out_features"])
        modules["linear"] = torch.nn.Linear(*sizes, bias=bool(config.get("bias", True)))
        if config.get("use_residual") and sizes[0] != sizes[1]:
            modules["residual"] = torch.nn.Linear(*sizes, bias=False)
    whole = torch.nn.ModuleDict(modules)
    fill(whole)
    write_json(folder / "config.json", config)
    save_file(whole.state_dict(), folder / "model.safetensors")


@torch.no_grad()
def fill(model: Any) -> None:
    """Weights that look random and are the same everywhere: no generator of torch's is asked."""
    for number, (name, weight) in enumerate(sorted(model.named_parameters())):
        steps = torch.arange(1, weight.numel() + 1, dtype=torch.int64)
        noise = ((steps * 48_271 + number * 7_919) * 69_621 % 65_537).double() / 65_537 - 0.5
        scale, middle = (0.8, 0.0) if weight.dim() > 1 else (0.2, 1.0)
        middle = 0.0 if name.endswith("bias") else middle
        weight.copy_((noise * scale + middle).view_as(weight))


@dataclass(frozen=True)
class Answers:
    """Answers by sentence-transformers: the first numbers of each case's, the keys of each module's
    file, and its modules.
    """

    rows: dict[str, list[list[float]]]
    keys: dict[str, list[str]]
    modules: list[str]


def ask_sentence_transformers(folder: Path) -> Answers:
    """Asks it in an environment of its own."""
    asked = {
        name: {
            "folder": str(save(case, folder / name.replace(" ", "_"))),
            "kind": case.kind,
            "texts": case.texts,
            "prompt_name": case.prompt_name,
        }
        for name, case in CASES.items()
    }
    file = folder / "asked.json"
    file.write_text(json.dumps(asked), encoding="utf-8")
    installed, environment = environment_with(REQUIREMENTS), {**os.environ, "HF_HUB_OFFLINE": "1"}
    said = run_in(installed, "python", str(_DRIVER), str(file), environment=environment)
    assert said.returncode == 0, said.stderr
    found = Answers(**json.loads(said.stdout.splitlines()[-1]))
    for name, rows in found.rows.items():
        rows[:] = [kept(CASES[name].kind, np.array(row)).round(6).tolist() for row in rows]
    return found


def kept(kind: str, answer: Any) -> Any:
    """Few numbers of an answer: the first; of weights of words and of vectors of tokens how many
    there are, and sums of all.
    """
    if kind == "SparseEncoder":
        places = np.arange(len(answer)) / len(answer)
        return np.array([np.count_nonzero(answer), answer.sum(), answer.max(), places @ answer])
    if kind == "MultiVectorEncoder":
        return np.array([len(answer), *answer.sum(axis=0)[: NUM_KEPT - 1]])
    return answer[:NUM_KEPT]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = ask_sentence_transformers(Path(folder)).rows
    lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in answers.items()]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
