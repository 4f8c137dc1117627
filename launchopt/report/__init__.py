"""A self-contained HTML report of what runs left, and timelines for Perfetto."""
