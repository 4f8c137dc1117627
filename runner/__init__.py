"""The Hydra application: knows processes and folders, knows no CUDA."""

from pathlib import Path

# The commands of `profiles` are run as `python -m runner.nsys`, `runner.trace` and so on.
__path__.append(str(Path(__file__).parent / "profiles"))
