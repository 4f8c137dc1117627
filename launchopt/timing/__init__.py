"""Measurements during a run: CUDA events, CUPTI records, NVML readings, NVTX ranges and traces of PyTorch."""
