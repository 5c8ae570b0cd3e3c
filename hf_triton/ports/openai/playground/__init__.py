"""A page to try the models with: its files, and what it asks beside OpenAI's API."""
