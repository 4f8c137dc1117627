"""Collectives of several GPUs: which ones are the same, how long each GPU waited, and how far clocks can be off."""
