"""lm-eval's models ``local-completions`` and ``local-chat-completions``, on tasks of each kind."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tried import MODEL_FOLDER, SERVER, program, tried

folder = Path(os.environ["OUTPUT"])
ROWS = [
    {"text": f"How can you be {word}", "gold": number % 2}
    for number, word in enumerate(("happy", "sad", "here", "there"))
]
KINDS = {
    "write": "generate_until\ndoc_to_target: '{{gold}}'\ngeneration_kwargs: {until: ['.'], "
    "max_gen_toks: 12}\nmetric_list: [{metric: exact_match}]",
    "choose": "multiple_choice\ndoc_to_choice: [' yes', ' no']\ndoc_to_target: gold\n"
    "metric_list: [{metric: acc}]",
    "likely": "loglikelihood\ndoc_to_target: ' yes'\nmetric_list: [{metric: perplexity}, "
    "{metric: acc}]",
    "roll": "loglikelihood_rolling\ndoc_to_target: '{{text}}'\n"
    "metric_list: [{metric: word_perplexity}]",
}
(folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
for name, kind in KINDS.items():
    text = "''" if name == "roll" else "'{{text}}'"
    (folder / f"{name}.yaml").write_text(
        f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {folder}/rows.jsonl}}\n"
        f"test_split: train\ndoc_to_text: {text}\noutput_type: {kind}\n"
    )


def evaluate(model: str, url: str, options: str, *arguments: str, tasks: str) -> None:
    """Each task has a result that is a number."""
    output = folder / f"results-{len(list(folder.iterdir()))}"
    said = program(
        *("lm_eval", "--model", model, "--include_path", str(folder), "--tasks", tasks),
        *("--model_args", f"model=demo,base_url={url},max_retries=1{options}"),
        *("--output_path", str(output), *arguments),
        HF_DATASETS_CACHE=str(folder / "cache"),
    )
    [found] = output.glob("**/results_*.json")
    results = json.loads(found.read_text())["results"]
    assert results.keys() == {*tasks.split(",")}, said
    for result in results.values():
        assert any(isinstance(value, float) for value in result.values()), result


BACKEND = f",tokenizer={MODEL_FOLDER},tokenizer_backend=huggingface"
COMPLETIONS = ("local-completions", f"{SERVER}/v1/completions")
ALL = ",".join(KINDS)

with tried("local-completions on tasks of all four kinds"):
    evaluate(*COMPLETIONS, BACKEND, tasks=ALL)
with tried("local-completions with tokenized_requests=False"):
    evaluate(*COMPLETIONS, f"{BACKEND},tokenized_requests=False", tasks=ALL)
with tried("local-completions with tokenizer_backend=remote, of a server of one model"):
    remote = f"{os.environ['SERVER_OF_ONE']}/v1/completions"  # it asks for no model's tokenizer
    evaluate("local-completions", remote, ",tokenizer_backend=remote", tasks=ALL)
with tried("local-chat-completions"):
    chat = ("local-chat-completions", f"{SERVER}/v1/chat/completions")
    evaluate(*chat, "", "--apply_chat_template", tasks="write")
