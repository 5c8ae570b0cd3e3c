"""What a machine allows at best: its memory's bandwidth and its rate of matrix products."""
