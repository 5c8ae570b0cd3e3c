"""Prints what sentence-transformers answers for the models that a file of JSON names, and which
keys its files have.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path

import sentence_transformers

asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
rows, whole = {}, set()


def answers(model, case, **options):
    """An array for each text; of late interaction the first is a query."""
    texts = case["texts"]
    if case["kind"] == "CrossEncoder":
        return model.predict(texts, **options)
    if case["kind"] == "SparseEncoder":
        found = model.encode(texts, convert_to_sparse_tensor=False, **options)
        return [one.numpy() for one in found]
    if case["kind"] == "MultiVectorEncoder":
        query, *documents = texts
        found = [model.encode_query(query, convert_to_numpy=True, **options)]
        return [*found, *model.encode_document(documents, convert_to_numpy=True, **options)]
    return model.encode(texts, **options)


for name, case in asked.items():
    prompt = {"prompt_name": case["prompt_name"]} if case["prompt_name"] else {}
    kind = getattr(sentence_transformers, case["kind"])
    model = kind(case["folder"], device="cpu", model_kwargs={"dtype": "float32"})
    found = answers(model, case, show_progress_bar=False, **prompt)
    rows[name] = [row.tolist() if row.ndim else [row.item()] for row in found]
    whole.update(model._get_model_config())

keys, modules = {"whole": sorted(whole)}, []
for package in ("base", "sentence_transformer", "cross_encoder", "sparse_encoder"):
    module = import_module(f"sentence_transformers.{package}.modules")
    modules += [getattr(module, name) for name in module.__all__]
modules += [
    getattr(import_module("sentence_transformers.multi_vector_encoder.modules"), name)
    for name in ("MultiVectorMask", "HierarchicalTokenPooling", "LambdaTokenPooling")
]
modules = [one for one in modules if one.__name__ not in ("Module", "InputModule")]
# Parameters that no file can hold.
OF_CODE = {"self", "model_name_or_path", "init_weight", "init_bias"}
for one in modules:
    parameters = {*inspect.signature(one.__init__).parameters} - OF_CODE
    keys[one.__name__] = sorted({*one.config_keys} | parameters)
print(json.dumps({"rows": rows, "keys": keys, "modules": sorted({m.__name__ for m in modules})}))
