"""Measures the two ceilings of the roofline model (https://doi.org/10.1145/1498765.1498785) on the
processor at hand: how fast memory is read, and how fast matrices are multiplied.

Each is the best that any operator reaches here, because a ceiling that can be passed is none.
``python -m perf.roofline.measured`` prints the figures of ``Run.roofline`` as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from generator.python_modules import run_module
from perf.orphans import our_environment
from perf.roofline.step import Machine

if TYPE_CHECKING:
    import torch

_READ_BYTES = 2**29  # far beyond any cache
_ROWS, _SIDE = 512, 2048
_LEAST_RUNS, _LEAST_S = 3, 0.4
_TIMEOUT_S = 300.0


class NotMeasuredError(Exception):
    """Why there are no figures, in one line."""


def figures() -> dict[str, float]:
    """For ``Run.roofline``, in 10 to 20 seconds: measured in a process of its own, which takes
    torch and its memory away with it. Raises NotMeasuredError.
    """
    if importlib.util.find_spec("torch") is None:
        raise NotMeasuredError("torch is not installed here (`make setup` installs it)")
    try:
        done = subprocess.run(
            run_module(__name__),
            env=our_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return dict(json.loads(done.stdout))
    except (OSError, ValueError) as error:
        raise NotMeasuredError(str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(f"not done after {_TIMEOUT_S:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise NotMeasuredError(lines[-1] if lines else f"exit code {error.returncode}") from error


def measure() -> Machine:
    """Takes about 5 seconds and 0.6 GiB, with as many threads as torch has.

    On a machine that does something else at the same time both ceilings come out too low.
    """
    import torch

    with torch.inference_mode():
        flop_per_s = (_flop_per_s(torch.float32), _flop_per_s(torch.bfloat16))
        return Machine(_memory_bytes_per_s(), *flop_per_s, torch.get_num_threads())


def _memory_bytes_per_s() -> float:
    import torch

    numbers = torch.ones(_READ_BYTES // 4)
    matrix = numbers.view(-1, 4096)
    vector = torch.ones(4096)
    return _READ_BYTES / min(_seconds(numbers.sum), _seconds(lambda: matrix @ vector))


def _flop_per_s(dtype: torch.dtype) -> float:
    import torch

    x = torch.randn(_ROWS, _SIDE).to(dtype)
    weight = torch.randn(_SIDE, _SIDE).to(dtype)
    return 2 * _ROWS * _SIDE * _SIDE / min(_seconds(run) for run in _products(x, weight))


def _products(x: torch.Tensor, weight: torch.Tensor) -> Iterator[Callable[[], object]]:
    """Ways to ``x @ weight.T``: torch's own, and oneDNN's with the weight laid out ahead."""
    import torch

    yield lambda: torch.nn.functional.linear(x, weight)
    ops = torch.ops.mkldnn
    try:
        packed = ops._reorder_linear_weight(weight, None)  # noqa: SLF001, what inductor emits
        ops._linear_pointwise(x, packed, None, "none", [], "")  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return
    yield lambda: ops._linear_pointwise(x, packed, None, "none", [], "")  # noqa: SLF001


def _seconds(run: Callable[[], object]) -> float:
    """The best of several runs."""
    run()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < _LEAST_RUNS or spent < _LEAST_S:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


if __name__ == "__main__":
    print(json.dumps(measure().as_figures()))
