"""The main job on a device: ``models.yaml`` to a real tritonserver with a Llama and an encoder.

Answers of /infer, /generate and /generate_stream against ``generate`` on the same device, tokens/s,
memory, healing after kill -9, a clean stop.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoTokenizer

from perf.lab.gpu.models import free_gib, make_llama
from perf.lab.gpu.told import Told

ROOT = Path(__file__).parents[3]
PROMPTS = ("I am going", "Once upon a time there was", "The farm")
_PORTS = ("--http-port=28000", "--grpc-port=28001", "--metrics-port=28002", "--health-port=28003")
_URL = "http://127.0.0.1:28000/v2/models/"
_READY_S, _HEALED_S, _STOPPED_S, _LOAD_S = 150.0, 60.0, 60.0, 8.0
_NUM_TOKENS = 24
_GREEDY = {"max_tokens": _NUM_TOKENS, "temperature": 0, "ignore_eos": True}
_MODELS_YAML = """\
models:
  - name: big
    task: text-generation
    model: {folder}/llama
    dtype: {dtype}
    instance_group: [{{kind: {kind}, count: 1}}]
    options: {{kv_cache_gib: {cache_gib}}}
  - name: encoder
    task: feature-extraction
    model: {root}/demo/embedding
    instance_group: [{{kind: {kind}, count: 1}}]
"""
_WORDS = ("the", "farm", "a", "house", "there", "is", "one", "way", "to", "go", "and", "look")


def measure(told: Told) -> None:
    with tempfile.TemporaryDirectory(prefix="perf-gpu-") as work:
        folder = Path(work)
        expected = make_model(folder / "llama", told)
        with serving(told, folder) as server:
            if server.poll() is None:
                for prompt, want in expected.items():
                    check_answers(told, prompt, want)
                for clients in (1, 8) if told.is_cpu else (1, 8, 64):
                    check_load(told, clients)
                check_healing(told, folder)
        if told.num_bad:
            print((folder / "serve.log").read_text(errors="replace")[-6000:])


def make_model(folder: Path, told: Told) -> dict[str, str]:
    """Writes the Llama, and gives its room back; what ``generate`` answers to each prompt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(ROOT / "demo" / "model")
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    model = make_llama("tiny" if told.is_cpu else "llama-1b", told.device, 4.0, **size)
    model.to(torch.float32 if told.is_cpu else torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = {}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").to(told.device)
        output = model.generate(**ids, max_new_tokens=_NUM_TOKENS, do_sample=False, pad_token_id=0)
        new = output[0, ids["input_ids"].shape[1] :]
        found[prompt] = tokenizer.decode(new, skip_special_tokens=True)
    del model
    free_gib(told.device)
    return found


@contextmanager
def serving(told: Told, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a user starts it, ready or ended; stopped as Ctrl-C does."""
    own = ("KIND_GPU", "bfloat16", 8) if not told.is_cpu else ("KIND_CPU", "float32", 1)
    about = dict(zip(("kind", "dtype", "cache_gib"), own, strict=True), folder=folder, root=ROOT)
    config, path = folder / "models.yaml", folder / "serve.log"
    config.write_text(_MODELS_YAML.format(**about))
    words = ["serve", f"--config={config}", f"--repository={folder / 'repository'}", *_PORTS]
    with path.open("wb") as log:
        command = [sys.executable, "-m", "generator", *words]
        server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        with told.case("ready") as row:
            row["after_s"] = _waited_s(lambda: _has_begun(path, server), _READY_S)
            row["agrees"] = server.poll() is None
        shown = re.findall(r".*(?: on c|engine|died|[Ee]rror).*", path.read_text(errors="replace"))
        print("\n".join(f"    {line[-300:]}" for line in shown), flush=True)
        yield server
    finally:
        server.send_signal(signal.SIGINT)
        with told.case("stopped") as row:
            row["exit_code"] = server.wait(_STOPPED_S)
            row["agrees"] = row["exit_code"] == 0
        server.kill()


def _has_begun(path: Path, server: subprocess.Popen[bytes]) -> bool:
    return b"hf-triton: serving" in path.read_bytes() or server.poll() is not None


def _waited_s(is_over: Callable[[], bool], most_s: float) -> float:
    """Raises TimeoutError."""
    begun_s = time.monotonic()
    while not is_over():
        if time.monotonic() - begun_s > most_s:
            raise TimeoutError(f"not within {most_s:.0f} s")
        time.sleep(0.3)
    return time.monotonic() - begun_s


def check_answers(told: Told, prompt: str, want: str) -> None:
    """Checks each endpoint against ``generate``; in bfloat16 a near tie may end otherwise."""
    with told.case(f"answers to {prompt!r}") as row:
        asked = {"text_input": prompt, **_GREEDY}
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [prompt]}
        inferred = post("big/infer", {"inputs": [tensor], "parameters": _GREEDY})
        events = post("big_stream/generate_stream", {**asked, "stream": True}).splitlines()
        found = {
            "generate": json.loads(post("big/generate", asked))["text_output"],
            "infer": json.loads(inferred)["outputs"][0]["data"][0],
            "stream": "".join(json.loads(one[5:])["text_output"] for one in events if one),
        }
        row |= {name: got for name, got in found.items() if got != want}
        row["agrees"] = len(row) == 1 and bool(post("encoder/generate", {"text_input": prompt}))


def check_load(told: Told, clients: int) -> None:
    """Useful tokens/s of clients in a closed loop with mixed lengths."""
    begun_s = time.monotonic()

    def client(number: int) -> int:
        draw, num_tokens = random.Random(number), 0
        while time.monotonic() < begun_s + _LOAD_S:
            wanted = draw.choice((16, 32, 64, 128))
            text = " ".join(draw.choices(_WORDS, k=draw.randint(8, 60)))
            options = {"max_tokens": wanted, "min_tokens": wanted, "ignore_eos": True}
            post("big/generate", {"text_input": text, **options})
            num_tokens += wanted
        return num_tokens

    with told.case(f"{clients} clients") as row:
        with ThreadPoolExecutor(clients) as pool:
            total = sum(pool.map(client, range(clients)))
        row |= {"agrees": True, "useful_tokens_per_s": total / (time.monotonic() - begun_s)}
        row["free_gib"] = free_gib(told.device)


def check_healing(told: Told, folder: Path) -> None:
    """The engine's process is killed: it answers again."""
    with told.case("heals after kill -9") as row:
        found = [one.pid for one in psutil.process_iter(["cmdline"]) if _is_engine(one, folder)]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        time.sleep(1)
        row["after_s"] = _waited_s(_answers, _HEALED_S)
        row["agrees"] = bool(found)


def _is_engine(process: psutil.Process, folder: Path) -> bool:
    words = process.info["cmdline"] or [""]
    line = " ".join(words)
    return "triton_python_backend_stub" in words[0] and f"{folder}/repository/big_stream/" in line


def _answers() -> bool:
    with suppress(OSError, RuntimeError):
        return bool(post("big/generate", {"text_input": "I", "max_tokens": 2}, timeout_s=10))
    return False


def post(path: str, body: dict[str, Any], timeout_s: float = 120) -> str:
    """The answer. Raises RuntimeError with an error's body."""
    content, heads = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(_URL + path, data=content, headers=heads)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code}: {error.read().decode()[:300]}") from None
