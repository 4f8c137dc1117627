"""Batching: buckets that collect commands by shape or steps by kind, and the order within requests."""
