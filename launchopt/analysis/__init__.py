"""What the numbers mean: intervals, comparisons, profiler exports."""
