"""Any YAML file as a tree that knows each value's line and column, and checks that report it."""
