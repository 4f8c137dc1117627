"""`python -m runner`, and the entry of the console script `launchopt`."""

from __future__ import annotations

import sys

from runner.ending import end, stand


def main() -> None:
    """Run the console script `launchopt`, and end the process with its exit code."""
    stand()
    from runner import commands

    end(commands.main, is_loaded=False)


# A spawned child imports this module under another name. It must not start the application again.
if __name__ == "__main__":
    from runner import commands

    end(lambda: commands.dispatch(sys.argv[1:]), is_loaded=False)
