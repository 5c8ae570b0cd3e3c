"""Downloads the weights that models.yaml names ahead of serving, and checks them."""
