"""What every engine is made of: the thread that owns the model, and Triton's side of it."""
