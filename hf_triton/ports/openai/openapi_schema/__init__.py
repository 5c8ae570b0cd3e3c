"""What the port tells of itself: its routes as an OpenAPI document, and as a page."""
