"""What shared prefixes save and cost in the in-flight engine."""
