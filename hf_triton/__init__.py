"""What runs inside Triton: the classes that the model.py of generated folders extends."""
