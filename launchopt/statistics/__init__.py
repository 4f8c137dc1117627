"""Intervals of medians and factors, numbers of repeats, and histograms: pure statistics over arrays."""
