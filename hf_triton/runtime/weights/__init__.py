"""Finds, downloads and checks a Hugging Face model's files; loads and quantizes its weights."""
