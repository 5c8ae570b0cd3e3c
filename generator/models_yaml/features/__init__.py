"""The keys of one feature each: adapters, canary, ensemble, hooks, metrics, quantization, ..."""
