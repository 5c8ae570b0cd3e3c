"""Our kernels by themselves: against float64 on the device itself, and their time."""
