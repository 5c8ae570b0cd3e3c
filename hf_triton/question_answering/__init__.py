"""The question-answering task: the stretch of a context that answers a question."""
