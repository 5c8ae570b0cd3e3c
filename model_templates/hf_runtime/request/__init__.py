"""A request of Triton's as tasks read it, and the way back to its caller."""
