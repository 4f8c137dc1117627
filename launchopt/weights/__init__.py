"""Quantised weights: their formats, their place in memory, and the quantiser."""
