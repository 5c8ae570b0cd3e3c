"""Model Analyzer with a server that runs already. Its perf_analyzer must be told what to send, as
for every model whose inputs have no fixed shape.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tried import PROMPT, program, tried

folder = Path(os.environ["OUTPUT"])
(folder / "input.json").write_text(json.dumps({"data": [{"text_input": [PROMPT]}]}))
(folder / "config.yaml").write_text(f"""\
profile_models: {{demo: {{perf_analyzer_flags: {{input-data: {folder}/input.json}}}}}}
triton_launch_mode: remote
triton_http_endpoint: {os.environ["TRITON_HTTP"]}
triton_grpc_endpoint: {os.environ["TRITON_GRPC"]}
triton_metrics_url: {os.environ["TRITON_METRICS"]}
reload_model_disable: true
run_config_search_disable: true
concurrency: [1]
""")

with tried("profile --triton-launch-mode remote, with perf_analyzer's input-data"):
    said = program("model-analyzer", "profile", "-f", str(folder / "config.yaml"))
    measured = (folder / "results" / "metrics-model-inference.csv").read_text()
    assert "demo_config_default" in measured, said
