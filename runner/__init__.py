"""The Hydra application: knows processes and folders, knows no CUDA."""
