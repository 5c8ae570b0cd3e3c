"""The paths whose answers are numbers: embeddings, rerank, score, classify."""
