"""Loops that Numba compiles, and the thread team that they run on."""
