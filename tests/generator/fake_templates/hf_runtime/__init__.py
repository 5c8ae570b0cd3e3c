"""Never run: only copied."""
