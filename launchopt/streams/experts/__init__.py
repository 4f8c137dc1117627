"""A layer with experts: how its outputs lie in memory, how tokens get their experts, and its commands in order."""
