"""Intervals, tests and power."""
