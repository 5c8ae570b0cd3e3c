"""What a sweep is asked to measure: the scenario file, its keys and its ranges."""
