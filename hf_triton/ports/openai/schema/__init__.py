"""OpenAI's requests, answers and errors. Knows neither HTTP nor Triton."""
