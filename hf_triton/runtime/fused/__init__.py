"""What decoders and encoders share that compute with compiled loops between matrix products."""
