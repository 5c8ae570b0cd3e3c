"""What an encoder computed, as the arrays and JSON texts of a response."""
