"""Streams of command records; they know no clock and no GPU."""
