"""Embeds two texts through LiteLLM; prints the vectors as one JSON list.

Arguments: the URL of the model's /infer. Runs in LiteLLM's own environment.
"""

from __future__ import annotations

import json
import sys

import litellm  # type: ignore[import-not-found]

TEXTS = ["A dog sleeps under a tree.", "The film was very good."]


def main(api_base: str) -> list[list[float]]:
    response = litellm.embedding(model="triton/embedding", input=TEXTS, api_base=api_base)
    return [list(row["embedding"]) for row in response.data]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
