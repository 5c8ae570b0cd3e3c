"""What shared prefixes save and cost: the command line."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from perf import machine
from perf.baselines.repositories import MODEL_FOLDER, generated
from perf.model import llama_config, make_model
from perf.shared_prefixes.report import Effort, Figures, Report, figures_of, to_json, to_markdown
from perf.written import write_report

DESCRIPTION = """\
Makes a Llama of 42 M random weights and loads its engine in one process, without a server. Then,
with prefixes shared and not, in turns:
  first token  of questions of 16 tokens behind a system prompt of 1,000 that was there before,
               from 1 and from 8 clients at once
  cost         the same requests, which share nothing: the mixed load from 32 clients, prompts of
               380 to 440 tokens from 8
Prints Markdown tables; writes them into PATH.md, and all figures into PATH.json."""
EPILOG = """\
examples:
  python -m perf.shared_prefixes            about 5 minutes; wants an otherwise idle machine
  python -m perf.shared_prefixes --quick    about a minute, rough figures
exit codes: 0 measured; 1 an answer failed or the engine did not start; 2 usage; 130 interrupted"""

ROOT = Path(__file__).parents[2]
MAX_MODEL_LEN = 2048
MODELS_YAML = f"""\
models:
  - name: measured
    task: text-generation
    model: ./{MODEL_FOLDER}
    dtype: float32
    streaming: false
    options: {{engine: in_flight, max_model_len: {MAX_MODEL_LEN}, max_num_seqs: 64}}
"""
FULL, QUICK = Effort(20, 8, 160), Effort(3, 2, 40)


def parse_args(argv: list[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.shared_prefixes",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a few requests")
    add("--seed", type=int, default=0, help="of the load and the weights (default 0)")
    add(
        "--output",
        type=Path,
        default=Path("perf/results/shared_prefixes"),
        metavar="PATH",
        help="where to write PATH.md and PATH.json (default perf/results/shared_prefixes)",
    )
    return parser.parse_args(argv)


def measure(folder: Path, effort: Effort, seed: int) -> Figures:
    """Runs the measuring process. Raises ``subprocess.CalledProcessError`` where it fails."""
    repository = generated(folder, "shared", MODELS_YAML)
    words = ["--folder", str(repository / "measured"), "--seed", str(seed)]
    words += ["--effort", json.dumps(asdict(effort))]
    path = os.pathsep.join([str(ROOT), str(ROOT / "model_templates")])
    done = subprocess.run(
        [sys.executable, "-m", "perf.shared_prefixes.in_process", *words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return figures_of(done.stdout.splitlines()[-1])


def main(argv: list[str]) -> int:
    """Measure, print the tables, write the results; return the exit code."""
    args = parse_args(argv)
    effort = QUICK if args.quick else FULL
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    hardware = machine.hardware()  # now, for the load average that others make
    try:
        with tempfile.TemporaryDirectory(prefix="perf-prefixes-") as folder:
            model_folder = Path(folder, MODEL_FOLDER)
            num_parameters = make_model(model_folder, args.seed, llama_config(MAX_MODEL_LEN))
            figures = measure(Path(folder), effort, args.seed)
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        print(f"perf.shared_prefixes: {error}", file=sys.stderr)
        return 1
    report = Report(
        created=created,
        command=shlex.join(["python", "-m", "perf.shared_prefixes", *argv]),
        commit=machine.commit(),
        hardware=hardware,
        versions=machine.versions(),
        model=f"Llama shape, {num_parameters / 1e6:.1f} M random weights, float32",
        load={**asdict(effort), "seed": args.seed},
        figures=figures,
    )
    write_report(args.output, to_json(report), to_markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
