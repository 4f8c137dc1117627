"""Stand-ins for CUDA's driver, runtime and libraries."""
