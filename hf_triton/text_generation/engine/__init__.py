"""The base of engines: a bounded queue, one thread that owns the model, a scheduler, delivery."""
