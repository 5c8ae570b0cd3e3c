"""``hf-triton optimize``: compares the engines of one served model."""
