"""Benchmarks of the command path, one file a part; `python -m runner.bench` runs them."""
