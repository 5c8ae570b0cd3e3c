"""Where a model computes: GPU or CPU, its memory and threads, and layouts of linear layers."""
