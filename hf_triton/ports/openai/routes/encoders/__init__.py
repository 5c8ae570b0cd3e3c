"""The paths whose answers are numbers: embeddings, rerank, score, classify."""

from __future__ import annotations

from hf_triton.ports.openai.routes.encoders.classify import CLASSIFY
from hf_triton.ports.openai.routes.encoders.cohere_embed import EMBED
from hf_triton.ports.openai.routes.encoders.embeddings import EMBEDDINGS
from hf_triton.ports.openai.routes.encoders.rankings import RERANK, SCORE
from hf_triton.ports.openai.routes.encoders.tei import EITHER_RERANK, PREDICT, PREDICT_OF_HUB
from hf_triton.ports.openai.routes.encoders.tei import EMBED as TEI_EMBED

OF_ONE = (TEI_EMBED, PREDICT_OF_HUB)  # at POST / of TEI and the Hub, by the task
ENCODING = (EMBEDDINGS, EMBED, TEI_EMBED, PREDICT, EITHER_RERANK, RERANK, SCORE, CLASSIFY)
