"""What hangs: does not end by itself, and does not get on either."""
