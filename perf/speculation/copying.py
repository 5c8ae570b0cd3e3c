"""Makes a Llama that says its prompt again, with some words changed: as an editor of code does.

Its weights are set by hand. The first layer has two heads that look one and two tokens back, the
second one that looks for where those stood before and takes what followed (induction heads,
https://arxiv.org/abs/2209.11895). All other weights are next to nothing, and cost what others do.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from perf.model import llama_config

_CODE, _WORD = 22, 64  # numbers that tell tokens apart, for looking and for saying
_THETA = 1e12  # of the rotary embedding: its last 22 pairs of numbers hardly turn
_FIRST_STILL = 10
_SIZES = {"last": _CODE, "older": _CODE, "word": _WORD, "one": 1} | dict.fromkeys(
    ("before", "before_that", "older_now"), _CODE
)


def copying_model(edited: float, config: LlamaConfig | None = None) -> LlamaForCausalLM:
    """A model of ``config``, or of perf/model.py's; a share of the tokens, ``edited``, is always
    said as another one.
    """
    config = config or llama_config(1024)
    config.rope_parameters = {"rope_type": "default", "rope_theta": _THETA}
    random = torch.Generator().manual_seed(0)
    model = LlamaForCausalLM(config)
    weights = model.state_dict()
    with torch.no_grad():
        for name, weight in weights.items():
            torch.nn.init.normal_(weight, std=1e-4, generator=random)
            if name.endswith("norm.weight"):
                weight.fill_((4 / config.hidden_size) ** 0.5)
        _set(weights, config.vocab_size, edited, random)
    model.eval()
    return model


def _set(
    weights: dict[str, torch.Tensor], vocab_size: int, edited: float, random: torch.Generator
) -> None:
    ends = torch.tensor([0, *_SIZES.values()]).cumsum(0).tolist()
    at = {name: slice(*ends[i : i + 2]) for i, name in enumerate(_SIZES)}
    said = slice(ends[-1], ends[-1] + _WORD)
    codes = {
        name: torch.nn.functional.normalize(
            torch.randn(vocab_size, _SIZES[name], generator=random), dim=1
        )
        for name in ("last", "older", "word")
    }
    for name, code in codes.items():
        weights["model.embed_tokens.weight"][:, at[name]] = code
    weights["model.embed_tokens.weight"][:, at["one"]] = 1
    first, second = (
        {name: weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"] for name in "qkvo"}
        for layer in (0, 1)
    )
    each, turns = torch.eye(_CODE), _THETA ** (-torch.arange(6) / 32)
    for head in (0, 1):  # looks head + 1 tokens back
        row = 64 * head
        first["q"][row : row + 6, at["one"]] = 200 * torch.cos((head + 1) * turns).unsqueeze(1)
        first["q"][row + 32 : row + 38, at["one"]] = -200 * torch.sin((head + 1) * turns).unsqueeze(
            1
        )
    first["k"][:6, at["one"]] = 1
    first["v"][:_CODE, at["last"]] = first["v"][_CODE : 2 * _CODE, at["older"]] = each
    first["o"][at["before"], :_CODE] = first["o"][at["older_now"], _CODE : 2 * _CODE] = each
    first["o"][at["before_that"], 64 + _CODE : 64 + 2 * _CODE] = each
    near, far = slice(_FIRST_STILL, 32), slice(32 + _FIRST_STILL, 64)
    second["q"][near, at["last"]], second["q"][far, at["older_now"]] = 400 * each, 300 * each
    second["k"][near, at["before"]] = second["k"][far, at["before_that"]] = each
    second["v"][:_WORD, at["word"]] = second["o"][said, :_WORD] = torch.eye(_WORD)
    tokens = torch.arange(vocab_size)
    changed = tokens[torch.rand(vocab_size, generator=random) < edited]
    spoken = tokens.clone()
    spoken[changed] = changed.roll(1)
    weights["lm_head.weight"][spoken, said] = 20 * codes["word"]
