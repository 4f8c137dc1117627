"""What a run and a sweep print when they end."""
