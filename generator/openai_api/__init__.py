"""OpenAI's API in front of a Triton that serves our repository.

Each request becomes one of Triton's (one per prompt) over gRPC, and Triton's answer OpenAI's. It
keeps no state between requests and knows no tokenizer: counting, templates, sampling and stopping
are the model's. https://platform.openai.com/docs/api-reference
"""
