"""The text-classification task: labels and scores of a text, or of a pair of texts."""
