"""Benchmarks of the command path, with a file for each part. `python -m runner.bench` runs them."""
