"""Whether tokens here are the CPU's, and what computed them: how far each runner that was tried is
from the model, and may be, is told too, and what the engine logs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any
from unittest.mock import patch

from hf_triton.runtime.devices.device import choose_attention_kernels
from hf_triton.text_generation.in_flight import runner_selection
from hf_triton.text_generation.in_flight.trial import name_of
from perf.gpu.told import Told, first_line, parser, show_log
from perf.verbs.arguments import pattern

GROUPS = ("ways", "models", "weights", "sampling", "encoders")


def main(argv: list[str]) -> int:
    """Tries the cases of a group whose names ``pattern`` is found in; returns the exit code."""
    arguments = parser(__doc__)
    arguments.add_argument("group", choices=GROUPS)
    arguments.add_argument("pattern", nargs="?", type=pattern, default=pattern(""))
    args = arguments.parse_args(argv)
    show_log()
    told = Told(args.device)
    choose_attention_kernels(args.device)  # as the product loads models
    module = importlib.import_module(f"perf.gpu.agree.{args.group}")
    own = runner_selection._difference  # noqa: SLF001
    with patch.object(runner_selection, "_difference", _told(own)):
        module.measure(told, args.pattern)
    print(f"{args.group}: {told.num_good} agree, {told.num_bad} do not")
    return told.exit_code


def _told(own: Any) -> Any:
    """Tells each runner that is tried."""

    def difference(factory: Any, *given: Any) -> float:
        try:
            found: float = own(factory, *given)
        except Exception as error:
            what = f"{type(error).__name__}: {first_line(error)}"
            print(f"    runner {name_of(factory)}: {what}", flush=True)
            raise
        most = given[-1].tolerance
        what = f"{found:.2g} of the logits' range, allowed {most:.2g}"
        print(f"    runner {name_of(factory)}: {what}", flush=True)
        return found

    return difference


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
