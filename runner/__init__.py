"""The Hydra application: command lines, processes and folders of results. It imports no CUDA."""

from pathlib import Path

# Users run the commands of `profiles` as `python -m runner.nsys`, `python -m runner.trace` and so on.
__path__.append(str(Path(__file__).parent / "profiles"))
