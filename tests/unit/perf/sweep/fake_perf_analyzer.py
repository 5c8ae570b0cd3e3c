"""A perf_analyzer that asks nobody: it tells its version, and exports two requests. A file beside
it says what it does wrong: ``fail`` with the text of its error, ``unstable``, ``nothing`` with its
text, ``empty``, which it does once, or ``kill``, which ends the fake server with the second load.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

arguments = sys.argv[1:]
wrong = Path(__file__).with_name("wrong")
how = wrong.read_text() if wrong.exists() else ""
if "--version" in arguments:
    print("Perf Analyzer Version 2.51.0 (commit fake)")
    sys.exit(0)
with Path(__file__).with_name("calls").open("a") as calls:
    calls.write(" ".join(arguments) + "\n")
if "--request-count" in arguments:
    sys.exit(0)
if how == "unstable" and "999999" not in arguments:
    print("Failed to obtain stable measurement within 3 measurement windows", file=sys.stderr)
    sys.exit(2)
if how.startswith("nothing ") and "count_windows" not in arguments:
    print(how[8:], file=sys.stderr)
    sys.exit(3)
if how == "kill" and "--concurrency-range 2" in " ".join(arguments):
    urllib.request.urlopen(f"http://{arguments[arguments.index('-u') + 1]}/die").close()
    how = "fail the connection broke"
if how.startswith("fail "):
    print(f"Failed to retrieve results\nThread [0] had error: {how[5:]}", file=sys.stderr)
    sys.exit(99)
end = time.time_ns()
start = end - 1_000_000_000
outputs = [{"text_output": "x", "num_output_tokens": 5}]
requests = [
    {
        "timestamp": start,
        "response_timestamps": [start + 100_000_000 * number],
        "response_outputs": outputs,
    }
    for number in (1, 2)
]
export = Path(arguments[arguments.index("--profile-export-file") + 1])
assert not export.exists(), "as the real one: it overwrites nothing"
if how == "empty":
    wrong.unlink()
    export.touch()
    sys.exit(0)
document = {"experiments": [{"requests": requests, "window_boundaries": [start, end]}]}
export.write_text(json.dumps(document))
