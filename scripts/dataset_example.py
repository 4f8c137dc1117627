"""Results as a dataset, without a notebook: the fastest mode of each run by DuckDB, costs of a launch by pandas.

    python scripts/dataset_example.py outputs            (default: outputs/reference)

Reads every summary.parquet below a folder, of any schema version, and prints two tables. Needs duckdb and pandas (extra
`dev`). Modes are compared only within a run, where they alternate on the same operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa

from launchopt.recording.dataset import batches, schema_of
from runner.reading import CommandParser, exit_code

FASTEST = """
    WITH modes AS (
        SELECT folder, workload, dtype, coalesce(gpu, 'CPU') AS device, commands, requests, mode, median(wall_ms) AS ms
        FROM runs WHERE verified AND NOT traced AND arrival = 'closed'
        GROUP BY ALL
    )
    SELECT any_value(workload) AS workload, any_value(dtype) AS dtype, any_value(device) AS device,
           any_value(commands) AS commands, any_value(requests) AS requests, arg_min(mode, ms) AS fastest,
           round(min(ms), 2) AS wall_ms, round(max(ms) FILTER (WHERE mode = 'baseline') / min(ms), 2) AS times_baseline
    FROM modes GROUP BY folder HAVING count(*) > 1
    ORDER BY ALL
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables of the runs below a folder. Return the exit code."""
    parser = CommandParser("dataset_example", __doc__)
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", default=Path("outputs/reference"))
    folder = parser.parsed(argv, needs_words=False).folder
    return exit_code(lambda: _print_tables(folder))


def _print_tables(folder: Path) -> int:
    # DuckDB cannot read 'outputs/**/summary.parquet' itself: those files have several schema versions.
    runs = pa.Table.from_batches(batches([folder], "summary"), schema_of("summary"))
    print(duckdb.sql(FASTEST).df().to_string(index=False))

    frame: pd.DataFrame = runs.to_pandas()
    verified = frame[(frame["verified"] == 1) & ~frame["traced"]]
    by_mode = verified.groupby(["mode", "dtype"])["host_submit_ns_per_launch"]
    print("\nhost time a launch call, us, over all runs\n", by_mode.agg(["min", "median", "max"]).div(1e3).round(2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
