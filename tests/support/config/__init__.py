"""Configurations as the command line composes them."""
