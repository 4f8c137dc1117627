"""Comparison of one run, or set of runs, with another."""
