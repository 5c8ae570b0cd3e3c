"""Makes the model that is measured: ``python -m perf.growth.make_llama FOLDER ...``

A process of its own, so that what measures the memory of others holds no torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from perf.model import llama_config, make_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--hidden-size", type=int, required=True)
    parser.add_argument("--num-layers", type=int, required=True)
    args = parser.parse_args()
    config = llama_config(args.max_model_len, args.hidden_size, args.num_layers)
    make_model(args.folder, args.seed, config)


if __name__ == "__main__":
    main()
