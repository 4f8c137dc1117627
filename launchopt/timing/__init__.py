"""Clocks, event spans and activity records."""
