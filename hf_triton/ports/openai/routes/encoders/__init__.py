"""The paths whose answers are numbers: embeddings, rerank, score, classify."""

from __future__ import annotations

from hf_triton.ports.openai.routes.encoders.classify import CLASSIFY, PREDICT, PREDICT_OF_HUB
from hf_triton.ports.openai.routes.encoders.embeddings import EMBED, EMBEDDINGS
from hf_triton.ports.openai.routes.encoders.rankings import (
    EITHER_RERANK,
    EMBED_OF_HUB,
    RANKING,
    RERANK,
    SCORE,
    SIMILARITY,
)

OF_ONE = (EMBED_OF_HUB, PREDICT_OF_HUB)  # at POST / of TEI and the Hub, by the task
ENCODING = (
    *(EMBEDDINGS, EMBED, SIMILARITY, PREDICT),
    *(EITHER_RERANK, RERANK, SCORE, RANKING, CLASSIFY),
)
