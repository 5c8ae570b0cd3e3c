"""What no wheel carries: checks on a GPU, peers' servers, notes and results."""
