"""What quantized weights save and cost beside whole ones: the command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from perf import machine
from perf.baselines.repositories import generated
from perf.load.level_process import LevelArguments
from perf.load.measure import Policy, summarize
from perf.load.resident import Resident, ResidentError, resident
from perf.model import llama_config, make_model
from perf.quantization.report import QuantizationReport, Run, to_json, to_markdown
from perf.written import write_report

DESCRIPTION = """\
Loads one Llama of random weights as it is and quantized, each in a process of its own and without a
server, and lets all of them generate in turns, so that whatever else the machine does meets all
alike. Prints a Markdown table of memory and tokens/s; writes it into PATH.md, and every figure into
PATH.json. With a GPU the engines are on it, and the memory is the GPU's."""
EPILOG = """\
example:
  python -m perf.quantization              2 rounds of 5 variants at 1, 8 and 32 clients, 10 minutes
  python -m perf.quantization --quick      a smaller model, 1 round, 2 minutes
exit codes: 0 measured; 1 an answer failed; 2 usage; 130 interrupted"""

WHOLE, HALF = "dtype: float32", "dtype: bfloat16"
VARIANTS = {
    "float32": WHOLE,
    "bfloat16": HALF,
    "int8 (float32)": f"{WHOLE}, quantization: int8",
    "int8": f"{HALF}, quantization: int8",
    "int8_dynamic": f"{HALF}, quantization: int8_dynamic",
    "bitsandbytes_8bit": f"{HALF}, quantization: bitsandbytes_8bit",
    "bitsandbytes_4bit": f"{HALF}, quantization: bitsandbytes_4bit",
    "int4": f"{HALF}, quantization: int4",
}
ON_CPU = ("float32", "bfloat16", "int8 (float32)", "int8", "int8_dynamic")
ENTRY = """\
models:
  - {{name: measured, task: text-generation, model: ./model, {keys}, streaming: false,
     options: {{max_model_len: 512, max_num_seqs: 32, kv_cache_gib: {kv_cache_gib}}}}}
"""
KV_CACHE_GIB = 1.25  # holds 32 sequences in float32


@dataclass(frozen=True)
class Effort:
    """The model's size, and how much it is asked."""

    hidden_size: int
    num_layers: int
    clients: tuple[int, ...]
    rounds: int
    round_s: float


FULL = Effort(hidden_size=1536, num_layers=12, clients=(1, 8, 32), rounds=2, round_s=10)
QUICK = Effort(hidden_size=512, num_layers=8, clients=(1, 16), rounds=1, round_s=6)


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.quantization",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=sorted(VARIANTS),
        metavar="VARIANT",
        default=list(ON_CPU),
        help=f"beside bfloat16, of: {', '.join(VARIANTS)}; default: those that need torchao alone",
    )
    parser.add_argument("--seed", type=int, default=0)
    default = Path(__file__).parents[1] / "results" / "quantization"
    parser.add_argument("--output", type=Path, default=default, metavar="PATH")
    return parser.parse_args(argv)


def memory_gib(process: Resident) -> float:
    """What a process holds: of the GPU where there is one, else of memory."""
    if Path("/proc/driver/nvidia/version").exists():
        query = [
            "nvidia-smi",
            "--query-compute-apps=pid,used_memory",
            "--format=csv,noheader,nounits",
        ]
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        used = dict(line.split(", ") for line in lines.splitlines())
        if str(process.pid) in used:
            return float(used[str(process.pid)]) / 1024
    return float(psutil.Process(process.pid).memory_info().rss) / 2**30


def measure(
    folder: Path, effort: Effort, variants: Sequence[str], seed: int
) -> tuple[Mapping[str, float], list[Run]]:
    """Memory of each variant in GiB, and all runs in their order."""
    runs, memory = list[Run](), dict[str, float]()
    with contextlib.ExitStack() as stack:
        processes = dict[str, Resident]()
        for number, variant in enumerate(variants):
            entry = ENTRY.format(keys=VARIANTS[variant], kv_cache_gib=KV_CACHE_GIB)
            repository = generated(folder, f"v{number}", entry)
            arguments = ["--folder", str(repository / "measured")]
            engine = stack.enter_context(resident("perf.load.in_process", arguments))
            processes[variant] = engine
            engine.records_of(LevelArguments.warm_up(seed), lambda _: None)
            memory[variant] = memory_gib(engine)
            print(f"{variant}: loaded, {memory[variant]:.2f} GiB", file=sys.stderr)
        for number in range(effort.rounds):
            for clients in effort.clients:
                order = list(processes) if number % 2 == 0 else list(reversed(processes))
                runs += [
                    run(variant, processes[variant], clients, effort, seed) for variant in order
                ]
    return memory, runs


def run(variant: str, engine: Resident, clients: int, effort: Effort, seed: int) -> Run:
    """One level of one variant; the same requests for all."""
    policy = Policy(min_requests=2 * clients, min_s=effort.round_s, max_s=10 * effort.round_s)
    records = engine.records_of(LevelArguments(clients, seed, policy), lambda _: None)
    level = summarize(records, clients)
    print(f"{variant} at {clients}: {level.useful_tokens_per_s:.0f} tokens/s", file=sys.stderr)
    return Run(variant, clients, level.useful_tokens_per_s, level.num_problems)


def quantization(args: argparse.Namespace, command: str) -> QuantizationReport:
    """Makes the model, measures, and says on what."""
    effort = QUICK if args.quick else FULL
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    chosen = [name for name in VARIANTS if name in args.variants or name == "bfloat16"]
    hardware = machine.hardware()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = llama_config(hidden_size=effort.hidden_size, num_layers=effort.num_layers)
        num_parameters = make_model(folder / "model", args.seed, shape)
        memory, runs = measure(folder, effort, chosen, args.seed)
    return QuantizationReport(
        created=created,
        command=command,
        commit=machine.commit(),
        hardware=hardware,
        versions=machine.versions(),
        model=f"Llama shape, {num_parameters / 1e6:.0f} M random weights, in float16 on disk",
        load={"texts": "mixed", "rounds": effort.rounds, "round_s": effort.round_s},
        memory_gib=memory,
        runs=runs,
    )


def main(argv: list[str]) -> int:
    """Measure, print the table, write the results; return the exit code."""
    args = parse_args(argv)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        report = quantization(args, shlex.join(["python", "-m", "perf.quantization", *argv]))
    except KeyboardInterrupt:
        return 130
    except (ResidentError, subprocess.CalledProcessError) as error:
        print(f"perf.quantization: {error}", file=sys.stderr)
        return 1
    write_report(args.output, to_json(report), to_markdown(report))
    return 1 if report.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
