"""What is measured: a module with a ``measure(context)`` for each kind of section."""
