"""Never run: only copied."""

ROLE = "front"
