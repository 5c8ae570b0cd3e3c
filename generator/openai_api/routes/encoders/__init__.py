"""The paths whose answers are numbers: embeddings, rerank, score, classify."""

from __future__ import annotations

from generator.openai_api.routes.encoders.classify import CLASSIFY
from generator.openai_api.routes.encoders.cohere_embed import EMBED
from generator.openai_api.routes.encoders.embeddings import EMBEDDINGS
from generator.openai_api.routes.encoders.rankings import RERANK, SCORE
from generator.openai_api.routes.encoders.tei_embed import TEI_EMBED

OF_ONE = (TEI_EMBED,)  # at POST / of TEI, by the task
ENCODING = (EMBEDDINGS, EMBED, TEI_EMBED, RERANK, SCORE, CLASSIFY)
