"""The vllm engine: our requests, options and answers on vLLM's asynchronous engine."""
