"""The paths whose answers are numbers: embeddings, rerank, score, classify."""

from __future__ import annotations

from generator.openai_api.routes.encoders.classify import CLASSIFY
from generator.openai_api.routes.encoders.cohere_embed import EMBED
from generator.openai_api.routes.encoders.embeddings import EMBEDDINGS
from generator.openai_api.routes.encoders.rankings import RERANK, SCORE
from generator.openai_api.routes.encoders.tei import EITHER_RERANK, PREDICT, PREDICT_OF_HUB
from generator.openai_api.routes.encoders.tei import EMBED as TEI_EMBED

OF_ONE = (TEI_EMBED, PREDICT_OF_HUB)  # at POST / of TEI and the Hub, by the task
ENCODING = (EMBEDDINGS, EMBED, TEI_EMBED, PREDICT, EITHER_RERANK, RERANK, SCORE, CLASSIFY)
