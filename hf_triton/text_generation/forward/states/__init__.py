"""Models that keep states of convolutions and recurrences, packed on the CPU by compiled loops."""
