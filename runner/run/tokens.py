"""The tokens of each repeat: summary columns, histograms, tokens.parquet, and a comparison with the first repeat."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.producing.overload import of_requests
from launchopt.producing.production import Tokens
from launchopt.recording import results
from launchopt.recording.manifest import Manifest
from launchopt.recording.token_times import token_columns, token_table
from launchopt.streams.chains.chain import ChainStream, chain_of
from runner.config.groups import Record
from runner.plan.plan import Plan
from runner.worker.messages import HistogramRows
from runner.worker.tables import GrowingTable, named


class TokenColumns(NamedTuple):
    """The columns that one repeat's tokens add to its results."""

    row: results.Row  # columns of summary.parquet
    histograms: HistogramRows
    extra: Manifest  # for the manifest


class TokenResults:
    """The tokens of one job. A context manager: its end completes tokens.parquet."""

    def __init__(self, plan: Plan, folder: Path, run_id: str) -> None:
        self._plan, self._run_id = plan, run_id
        wanted = plan.config.record.tokens is Record.all
        self._table = GrowingTable(folder / "tokens.parquet", results.TOKENS, plan.composed) if wanted else None
        self._first_ids: NDArray[np.int64] | None = None

    def __enter__(self) -> TokenResults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._table:
            self._table.close()

    def add(self, mode: str, repeat: int, wall_ms: float, tokens: Tokens) -> TokenColumns:
        """Add a repeat's tokens to tokens.parquet, and return the columns of the summary that follow from them."""
        stream, config = chain_of(self._plan.stream), self._plan.config
        where = self._plan.sampling_where
        slo, is_sampled = config.slo, where is not None
        row, found = token_columns(tokens, stream.outputs, wall_ms, slo.ttft_ms, slo.tpot_ms, is_sampled)
        histograms = {name: histogram.rows() for name, histogram in found.items()}
        extra: Manifest = {}
        if self._table:
            columns = token_table(tokens, stream.outputs, is_sampled)
            self._table.add(named(columns, self._run_id, mode, repeat, stream.tokens))
        if is_sampled:
            self._first_ids = tokens.ids if self._first_ids is None else self._first_ids
            extra["tokens_unlike_first_repeat"] = int(np.count_nonzero(tokens.ids != self._first_ids))
        sampling = {"sampling": config.sampling.kind.value, "sampling_where": where}
        return TokenColumns(row | sampling | self._arrivals(tokens, stream), histograms, extra)

    def _arrivals(self, tokens: Tokens, stream: ChainStream) -> results.Row:
        """Return the arrival columns: the rates at which requests were due and completed."""
        arrival = self._plan.config.arrival
        rate, overloaded = of_requests(tokens, stream.outputs)
        if arrival.is_closed:
            return {"completed_rate_per_s": rate}
        due = arrival.asked_rate_per_s
        span_ns = int(stream.asked.arrival_ns.max())
        if due is None and span_ns:
            due = (stream.requests - 1) / (span_ns * 1e-9)
        return {"arrival_rate_per_s": due, "completed_rate_per_s": rate, "overloaded": overloaded}
