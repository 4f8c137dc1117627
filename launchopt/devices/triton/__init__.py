"""Triton kernels for batches, their plans and their tuning."""
