"""Launches of whole steps of several requests: rows coalesced, rows fused, and steps captured in CUDA graphs."""
