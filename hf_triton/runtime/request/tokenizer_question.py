"""The parameter by which a request asks a model's tokenizer instead of the model.

Standard library only: the OpenAI API sends it.
"""

TOKENIZER_QUESTION = "tokenizer"
