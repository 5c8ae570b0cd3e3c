"""The thread that owns an encoder: what waits, what a step computes, what is counted."""
