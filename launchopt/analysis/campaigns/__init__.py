"""Pages of measurement campaigns."""
