"""Make the demo models of every task but text-generation, which make_model.py makes.

Run as `python -m demo.make_task_models`, or with the names of some: `embedding classifier`. What
they learn from comes from demo/corpus alone, nothing is downloaded. The encoders begin with the
fill-mask model of the same folder, so `mask` is made first. The same settings on the same machine
give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from demo.task_models import (
    answers,
    classifier,
    embedding,
    entities,
    image,
    mask,
    seeing,
    translate,
    zero_shot,
)
from demo.training import be_deterministic

MODELS: dict[str, ModuleType] = {
    "mask": mask,
    "embedding": embedding,
    "classifier": classifier,
    "zero-shot": zero_shot,
    "entities": entities,
    "answers": answers,
    "translate": translate,
    "image": image,
    "seeing": seeing,
}  # name of the folder -> its module, in the order of making


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.make_task_models", description=__doc__)
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all without any")
    add("--out", type=Path, default=Path(__file__).parent, help="folder of the models' folders")
    add("--check", action="store_true", help="train nothing, only print samples of --out")
    add("--steps", type=int, help="training steps of each model; default: each one's own")
    add("--seed", type=int, default=1, help="seed of the texts, the weights and the order")
    add("--threads", type=int, default=1, help="CPU threads; another number, other bytes")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - MODELS.keys())
    if unknown:
        parser.error(f"got {', '.join(unknown)}, expected some of {', '.join(MODELS)}")
    be_deterministic(options.threads)
    for name, module in MODELS.items():
        if options.names and name not in options.names:
            continue
        if not options.check:
            torch.manual_seed(options.seed)
            module.make(options.out, options.steps or module.STEPS, options.seed)
        print(f"== {name}")
        module.show(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
