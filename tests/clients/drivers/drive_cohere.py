"""Cohere's SDK: rerank."""

from __future__ import annotations

import cohere
from tried import tried

client = cohere.ClientV2()
TEXTS = ["A dog sleeps under a tree.", "The film was very good."]

with tried("ClientV2.rerank"):
    found = client.rerank(model="embedding", query="a good film", documents=TEXTS, top_n=1)
    assert found.results[0].index == 1, found
with tried("Client.rerank"):
    found = cohere.Client().rerank(model="embedding", query="a good film", documents=TEXTS)
    assert len(found.results) == 2, found
