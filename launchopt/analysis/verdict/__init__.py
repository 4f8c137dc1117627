"""Verdicts: the bottleneck of a run, and the strategy to try first."""
