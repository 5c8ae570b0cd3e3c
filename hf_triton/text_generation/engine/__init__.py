"""What every engine is: a bounded queue, one thread that owns the model, a scheduler, delivery."""
