"""The main job on a device: ``models.yaml`` to a real tritonserver with a Llama and an encoder.

Answers of /infer, /generate and /generate_stream against ``generate`` on the same device, tokens/s,
memory, healing after kill -9, a clean stop.
"""

from __future__ import annotations

import gc
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from perf.gpu.told import Told, parser

ROOT = Path(__file__).parents[2]
PROMPTS = ("I am going", "Once upon a time there was", "The farm")
PORTS = {"http": 28000, "grpc": 28001, "metrics": 28002, "health": 28003}
_URL = f"http://127.0.0.1:{PORTS['http']}/v2/models/"
_READY_S, _HEALED_S, _STOPPED_S = 150.0, 60.0, 60.0
_NUM_TOKENS = 24
_GREEDY = {"max_tokens": _NUM_TOKENS, "temperature": 0, "ignore_eos": True}
_SMALL = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
_LARGE = {  # 1 B
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
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


def main(argv: list[str]) -> int:
    """Serves and asks; returns the exit code."""
    args = parser(__doc__).parse_args(argv)
    told = Told(args.device)
    with tempfile.TemporaryDirectory(prefix="perf-gpu-") as work:
        folder = Path(work)
        expected = make_model(folder / "llama", told)
        with serving(told, folder) as server:
            if server.poll() is None:
                check_answers(told, expected)
                for clients in (1, 8) if told.is_cpu else (1, 8, 64):
                    check_load(told, clients)
                check_healing(told, folder)
        if told.num_bad:
            print((folder / "serve.log").read_text(errors="replace")[-6000:])
    return told.exit_code


def make_model(folder: Path, told: Told) -> dict[str, str]:
    """Writes the Llama, and gives its room back; what ``generate`` answers to each prompt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(ROOT / "demo" / "model")
    torch.manual_seed(0)
    dtype = torch.float32 if told.is_cpu else torch.bfloat16
    size: dict[str, Any] = {**(_SMALL if told.is_cpu else _LARGE), "eos_token_id": None}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **size)
    with torch.device(told.device):
        model: Any = LlamaForCausalLM(config)
    model = model.to(dtype).eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = {}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").to(told.device)
        output = model.generate(**ids, max_new_tokens=_NUM_TOKENS, do_sample=False, pad_token_id=0)
        new = output[0, ids["input_ids"].shape[1] :]
        found[prompt] = tokenizer.decode(new, skip_special_tokens=True)
    del model
    gc.collect()
    if not told.is_cpu:
        torch.cuda.empty_cache()
    return found


@contextmanager
def serving(told: Told, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a user starts it, ready or ended; stopped as Ctrl-C does."""
    places = {"folder": folder, "root": ROOT, "kind": "KIND_CPU" if told.is_cpu else "KIND_GPU"}
    own = (
        {"dtype": "float32", "cache_gib": 1}
        if told.is_cpu
        else {"dtype": "bfloat16", "cache_gib": 8}
    )
    (folder / "models.yaml").write_text(_MODELS_YAML.format(**places, **own))
    words = ["--config", str(folder / "models.yaml"), "--repository", str(folder / "repository")]
    words += [word for name, port in PORTS.items() for word in (f"--{name}-port", str(port))]
    path = folder / "serve.log"
    with path.open("wb") as log:
        command = [sys.executable, "-m", "generator", "serve", *words]
        server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            with told.case("ready") as row:
                _wait_ready(row, server, path)
            yield server
        finally:
            server.send_signal(signal.SIGINT)
            with told.case("stopped") as row:
                row["exit_code"] = server.wait(_STOPPED_S)
                row["agrees"] = row["exit_code"] == 0
            server.kill()


def _wait_ready(row: dict[str, Any], server: subprocess.Popen[bytes], path: Path) -> None:
    begun_s, text = time.monotonic(), ""
    while "hf-triton: serving" not in text and server.poll() is None:
        if time.monotonic() - begun_s > _READY_S:
            raise TimeoutError(f"not ready within {_READY_S:.0f} s")
        time.sleep(0.3)
        text = path.read_text(errors="replace")
    row |= {"agrees": server.poll() is None, "after_s": time.monotonic() - begun_s}
    shown = re.findall(r".*(?: on c|engine|died|[Ee]rror).*", text)
    print("\n".join(f"    {line[-300:]}" for line in shown), flush=True)


def check_answers(told: Told, expected: dict[str, str]) -> None:
    """Each endpoint beside ``generate``; in bfloat16 a near tie may end otherwise."""
    for prompt, want in expected.items():
        asked = {"text_input": prompt, **_GREEDY}
        with told.case(f"/generate {prompt!r}") as row:
            got = post("big/generate", asked)["text_output"]
            row["agrees"] = got == want
            row |= {} if got == want else {"got": got, "want": want}
        with told.case(f"/infer {prompt!r}") as row:
            tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [prompt]}
            answer = post("big/infer", {"inputs": [tensor], "parameters": _GREEDY})
            row["agrees"] = answer["outputs"][0]["data"][0] == got
        with told.case(f"/generate_stream {prompt!r}") as row:
            events = post("big_stream/generate_stream", {**asked, "stream": True}, is_stream=True)
            row["agrees"] = "".join(event["text_output"] for event in events) == got
    with told.case("an encoder") as row:
        row["agrees"] = bool(post("encoder/generate", {"text_input": "a farm"}))


def check_load(told: Told, clients: int, seconds: float = 8.0) -> None:
    """Useful tokens/s of clients in a closed loop with mixed lengths."""
    end_s = time.monotonic() + seconds

    def client(number: int) -> int:
        draw, num_tokens = random.Random(number), 0
        while time.monotonic() < end_s:
            wanted = draw.choice((16, 32, 64, 128))
            text = " ".join(draw.choices(_WORDS, k=draw.randint(8, 60)))
            options = {"max_tokens": wanted, "min_tokens": wanted, "ignore_eos": True}
            post("big/generate", {"text_input": text, **options})
            num_tokens += wanted
        return num_tokens

    with told.case(f"{clients} clients") as row:
        begun_s = time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            total = sum(pool.map(client, range(clients)))
        row |= {"agrees": True, "useful_tokens_per_s": total / (time.monotonic() - begun_s)}
        if not told.is_cpu:
            row["used_gib"] = _used_gib(told.device)


def _used_gib(device: torch.device) -> float:
    free, total = torch.cuda.mem_get_info(device)
    return float((total - free) / 2**30)


def check_healing(told: Told, folder: Path) -> None:
    """The engine's process is killed: it answers again."""
    with told.case("heals after kill -9") as row:
        found = [one.pid for one in psutil.process_iter(["cmdline"]) if _is_engine(one, folder)]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        begun_s = time.monotonic()
        time.sleep(1)
        while not _answers():
            if time.monotonic() - begun_s > _HEALED_S:
                raise TimeoutError(f"no answer within {_HEALED_S:.0f} s")
            time.sleep(0.3)
        row |= {"agrees": bool(found), "after_s": time.monotonic() - begun_s}


def _is_engine(process: psutil.Process, folder: Path) -> bool:
    words = process.info["cmdline"] or [""]
    line = " ".join(words)
    return "triton_python_backend_stub" in words[0] and f"{folder}/repository/big_stream/" in line


def _answers() -> bool:
    try:
        return bool(post("big/generate", {"text_input": "I", "max_tokens": 2}, timeout_s=10))
    except (OSError, RuntimeError):
        return False


def post(
    path: str, body: dict[str, Any], *, is_stream: bool = False, timeout_s: float = 120
) -> Any:
    """The answer's JSON; of a stream each event's. Raises RuntimeError with an error's body."""
    content, heads = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(_URL + path, data=content, headers=heads)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code}: {error.read().decode()[:300]}") from None
    if not is_stream:
        return json.loads(text)
    lines = text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
