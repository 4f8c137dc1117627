"""What a run prints: its progress, and its results; what a sweep prints when it ends."""
