"""Waterfalls: stacks of one run, each with one choice more than the one before, and the time that each choice saves."""
