"""The parent's side of a run: children, repeats, resuming, sweeps, signals."""
