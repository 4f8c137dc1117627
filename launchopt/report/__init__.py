"""A self-contained HTML report of runs, and timelines for Perfetto."""
