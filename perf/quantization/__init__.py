"""What quantized weights save and cost beside whole ones: memory and tokens/s."""
