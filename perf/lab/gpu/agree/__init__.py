"""Whether tokens here are the CPU's: a module with a ``measure(context)`` for each kind of case."""
