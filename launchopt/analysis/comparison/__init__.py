"""One run or set of runs against another."""
