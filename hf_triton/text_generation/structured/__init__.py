"""Outputs held to a JSON schema, a regular expression or a list of choices."""
