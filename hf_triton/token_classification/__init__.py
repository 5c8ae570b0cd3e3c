"""The token-classification task: the entities of a text, with their offsets."""
