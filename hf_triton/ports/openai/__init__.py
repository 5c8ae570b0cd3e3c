"""The OpenAI API in front of a Triton that serves our repository.

Translates each request into Triton requests over gRPC, one per prompt, and the answers back. Keeps
no state between requests and has no tokenizer: the model counts tokens, applies chat templates,
samples and stops. https://platform.openai.com/docs/api-reference
"""
