"""All that clients connect to: processes that check requests and pass them on to tritonserver."""
