"""What interruptions cost a fetch: ``python -m perf.interrupted_fetch``.

A hub on the loopback serves a model of a few files; the fetch is cut off at random moments, some
times by the hub (the connection breaks), the others by ``kill -9``, and started again.
Prints the bytes that the hub sent more than once, and whether every file is right in the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.fake_hub import FakeHub, Repository, running_hub

MODEL = {"name": "tiny", "task": "feature-extraction", "model": "org/tiny"}
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="size of the model (default: 200)")
    parser.add_argument("--cuts", type=int, default=10, help="interruptions (default: 10)")
    parser.add_argument("--kills", type=int, default=5, help="of them kill -9 (default: 5)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    shares = (0.6, 0.3, 0.1)
    files = {
        f"model-{number}.safetensors": chance.randbytes(int(args.mb * 1e6 * share))
        for number, share in enumerate(shares)
    }
    with running_hub() as hub, tempfile.TemporaryDirectory() as folder:
        hub.repositories["org/tiny"] = Repository({"config.json": b"{}", **files})
        hub.seconds_between_chunks = 0.001
        (Path(folder) / "models.yaml").write_text(json.dumps({"models": [MODEL]}))
        num_kills = fetch_with_interruptions(hub, Path(folder), args, chance)
        report(hub, Path(folder), files, args.cuts, num_kills)


def fetch_with_interruptions(
    hub: FakeHub, folder: Path, args: argparse.Namespace, chance: random.Random
) -> int:
    """How often the fetch was killed; all other interruptions were cut connections."""
    num_kills: int = min(args.kills, args.cuts)
    total = args.mb * 1_000_000
    hub.cuts = [chance.randrange(1, total // 20) for _ in range(args.cuts - num_kills)]
    for moment in sorted(chance.random() for _ in range(num_kills)):
        process = start(hub, folder)
        while sum(hub.sent.values()) < moment * total and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.wait()
    process = start(hub, folder)
    if process.wait() != 0:
        raise SystemExit("the last fetch failed")
    return num_kills


def start(hub: FakeHub, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "PYTHONPATH": str(ROOT)}
    for name in ("HF_TOKEN", "PRIVATE_REPO_TOKEN"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "generator", "fetch"]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def report(
    hub: FakeHub, folder: Path, files: dict[str, bytes], num_cuts: int, num_kills: int
) -> None:
    total = sum(map(len, files.values()))
    sent = sum(hub.sent[name] for name in files)
    (snapshot,) = folder.glob("model_repository/tiny/hf_cache/models--org--tiny/snapshots/*")
    right = sum(
        hashlib.sha256((snapshot / name).read_bytes()).digest() == hashlib.sha256(data).digest()
        for name, data in files.items()
    )
    kills = f"{num_kills} kill -9, {num_cuts - num_kills - len(hub.cuts)} cut connections"
    print(f"model: {total:,} bytes in {len(files)} files; interrupted by {kills}")
    print(
        f"sent by the hub: {sent:,} bytes; twice: {sent - total:,} ({(sent - total) / total:.3%})"
    )
    print(f"files with the right SHA-256: {right} of {len(files)}")


if __name__ == "__main__":
    main()
