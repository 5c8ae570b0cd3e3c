"""A model that needs nothing but Python: what a model costs in itself."""
