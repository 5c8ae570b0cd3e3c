"""A GPU that is not there: says what steps launch, copy and wait for, where there is no other."""
