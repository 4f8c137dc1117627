"""Checks of this machine before a measurement."""
