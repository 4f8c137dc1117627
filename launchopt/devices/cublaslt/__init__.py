"""Calls of cuBLASLt and cuBLAS: plans, heuristics, strided, pointer-array and grouped batches."""
