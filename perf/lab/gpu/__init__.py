"""What a machine with an NVIDIA GPU gives: the engines beside the limits of its memory."""
