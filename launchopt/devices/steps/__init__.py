"""Whole steps of several requests: coalesced, fused and captured."""
