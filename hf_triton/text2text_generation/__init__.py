"""The text2text-generation task: summarisation and translation on text_generation's engine."""
