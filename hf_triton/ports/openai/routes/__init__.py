"""OpenAI's paths: chat completions, completions, embeddings, and their answers."""
