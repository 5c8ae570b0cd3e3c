"""Batches: files of requests of OpenAI's API that are answered when others leave room."""
