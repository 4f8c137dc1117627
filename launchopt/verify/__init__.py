"""Checks of outputs and operands against float64."""
