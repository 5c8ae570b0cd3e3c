"""Two runs side by side: ratios load by load, and which of them are more than noise."""
