"""The fill-mask task: words for the places that a text leaves open."""
