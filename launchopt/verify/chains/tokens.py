"""Check the tokens of a run of requests against a computation in float64, outside the timed region.

There are three checks. None of them uses data of the consumer.

Tokens. The input of a token is the last row of its prompt, the previous output, scaled as in feedback, or the embedding
row of the previous id. The check computes the whole step again from that input in float64; with attention, from the
inputs of all columns of the request. Without sampling, the run kept the last output of every token, which must equal
the result. With sampling, the id must be one that these logits allow. This finds a command that ran too early, read
other data, or did not run, even if a later command overwrote its output.

Caches. All keys and values that the run wrote are still in memory. They must be right at every position. This finds a
missing write even if attention averages the value with many others. A page that requests share is compared for each of
them, and counts for the one that computes it.

Commands. The outputs of each request's last step are still in memory (`verify.chains.steps`). Each output must be the
op's result for its weight and inputs in memory. Features that no later command reads are included; scores of positions
that a column does not attend to are not.

The bound on the error is computed together with the result (`verify.ops`). Errors are relative to the rms of the exact
row. The bounds of tokens and caches are multiplied by sqrt(1 + GEMMs / width), which matters for narrow models. There,
a matrix of few columns spreads an error less evenly than `verify.ops` assumes, and each later matrix amplifies this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from launchopt.devices.arenas import Arenas, to_host
from launchopt.devices.shares import WeightShares
from launchopt.sampling import Sampling, SamplingKind, plausible, plausible_greedy
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.verify.chains.caches import LeftCache
from launchopt.verify.chains.columns import Columns
from launchopt.verify.chains.inputs import Inputs, Numbers, last_of_prompt
from launchopt.verify.chains.reference import Evaluator
from launchopt.verify.chains.steps import StepCheck
from launchopt.verify.commands import CheckSettings, Verification
from launchopt.verify.findings import CheckProgress, Findings
from launchopt.verify.ops import Graded, allowed

# Memory that the check uses at a time, roughly: CHUNK_BYTES on a CPU. On a GPU it is a share of the free memory, within
# these two limits, since there a large piece takes hardly longer than a small one.
CHUNK_BYTES, MOST_CHUNK_BYTES, SHARE_OF_FREE = 256 << 20, 2 << 30, 8
SAMPLED_IDS = 4096  # ids that are checked at least, chosen at random; a float64 row of logits takes a millisecond


def verify_chain(
    stream: ChainStream,
    arenas: Arenas,
    sampling: Sampling,
    ids: Numbers,
    settings: CheckSettings,
    unwritten: frozenset[str] = frozenset(),
    own: Numbers | None = None,
    shares: WeightShares | None = None,
) -> Verification:
    """Check all tokens, the KV caches, and the commands of every request's last step.

    ids: id of each token, [tokens]. settings: the columns are those of a command of a last step. unwritten: nodes whose
    outputs were not written, since one launch computed them and their successors. own: only these requests. shares: the
    whole weights of a model that several GPUs split; its tokens are computed from them.
    """
    own = np.arange(stream.requests) if own is None else own
    generator = np.random.default_rng([settings.seed, 0xC4A1])
    findings = Findings(arenas.xp, stream.tokens, CheckProgress(stream.commands, settings.report))
    inputs, evaluator = Inputs(stream, arenas, ids), Evaluator(stream, arenas)
    is_sample, tokens = stream.vocab is not None and not settings.full, int(stream.outputs[own].sum())
    most = min(SAMPLED_IDS, tokens) if is_sample else tokens
    chunk_bytes = _chunk_bytes(arenas)
    of_tokens = evaluator if shares is None else of_whole(shares, arenas)
    _Tokens(stream, inputs, of_tokens, findings, chunk_bytes, own).check(sampling, ids, generator, most)
    steps = StepCheck(stream, inputs, evaluator, unwritten, chunk_bytes, settings.max_columns, generator)
    steps.last_steps(findings, own)
    return findings.verdict(stream.commands_of(own))


def of_whole(shares: WeightShares, arenas: Arenas) -> Evaluator:
    """Return the evaluator of the whole model. arenas: those of one of the GPUs that split it."""
    stream = shares.stream
    left = None if stream.attention is None else LeftCache(stream, arenas, shares.rank)
    return Evaluator(shares.whole_stream, shares.whole, left, stream.split)


def _chunk_bytes(arenas: Arenas) -> int:
    if arenas.xp is np:
        return CHUNK_BYTES
    free: int = arenas.xp.cuda.runtime.memGetInfo()[0]
    return max(CHUNK_BYTES, min(free // SHARE_OF_FREE, MOST_CHUNK_BYTES))


class _Tokens:
    """Checks tokens and KV caches. chunk_bytes: memory to use at a time, roughly."""

    def __init__(
        self,
        stream: ChainStream,
        inputs: Inputs,
        evaluator: Evaluator,
        findings: Findings,
        chunk_bytes: int,
        own: Numbers,
    ) -> None:
        self._chunk_bytes, self._own = chunk_bytes, own
        self._stream, self._inputs, self._evaluator, self._left = stream, inputs, evaluator, evaluator.left
        self._findings, self._xp = findings, evaluator.xp
        self._first = stream.table[:, ChainColumn.FIRST_TOKEN]
        gemms = stream.gemms_per_step + (stream.vocab is not None)
        self._factor = math.sqrt(1 + gemms / stream.hidden)

    def check(self, sampling: Sampling, ids: Numbers, generator: np.random.Generator, most: int) -> None:
        """Check `most` tokens, chosen at random; with attention, those of whole requests until there are as many."""
        chosen = self._parts if self._stream.attention is None else self._sequences
        parts = chosen(generator, most)
        for numbers, at in parts:
            self._some(numbers, at, sampling, ids)

    def _parts(self, generator: np.random.Generator, most_tokens: int) -> Iterator[tuple[Numbers, Columns]]:
        """Yield numbers of tokens and their columns, ordered by the copy of the weights. A token has one column."""
        stream = self._stream
        numbers = np.flatnonzero(np.isin(np.repeat(np.arange(stream.requests), stream.outputs), self._own))
        if len(numbers) > most_tokens:
            numbers = np.sort(generator.choice(numbers, most_tokens, replace=False))
        requests = np.searchsorted(self._first, numbers, "right") - 1
        at = numbers - self._first[requests]
        columns = Columns(requests, last_of_prompt(stream, requests) + at, at % stream.replicas)
        order = np.argsort(columns.replicas, kind="stable")
        self._findings.progress.expect(len(order) + stream.requests)
        most = self._most_columns()
        for start in range(0, len(order), most):
            part = order[start : start + most]
            yield numbers[part], columns.part(part)

    def _sequences(self, generator: np.random.Generator, most_tokens: int) -> Iterator[tuple[Numbers, Columns]]:
        """Yield columns of whole requests, with the number of the token that each computes (-1 within a prompt)."""
        stream = self._stream
        requests = self._own
        if stream.outputs[requests].sum() > most_tokens:
            requests = generator.permutation(requests)
            requests = np.sort(requests[: 1 + np.searchsorted(np.cumsum(stream.outputs[requests]), most_tokens)])
        before = last_of_prompt(stream, requests)
        lengths = before + stream.outputs[requests]
        self._findings.progress.expect(int(lengths.sum()) + stream.requests)
        start, most = 0, self._most_columns()
        while start < len(requests):
            stop = max(start + 1, int(np.searchsorted(np.cumsum(lengths[start:]), most, "right")) + start)
            some = slice(start, stop)
            of = np.repeat(requests[some], lengths[some])
            positions = np.arange(len(of)) - np.repeat(np.cumsum(lengths[some]) - lengths[some], lengths[some])
            at = positions - np.repeat(before[some], lengths[some])
            numbers = np.where(at >= 0, self._first[of] + at, -1)
            yield numbers, Columns(of, positions, np.maximum(at, 0) % stream.replicas)
            start = stop

    def _most_columns(self) -> int:
        """Return the number of columns whose inputs, outputs, keys and values fit into the chunk."""
        kept = 0 if self._stream.attention is None else 2 * self._stream.attention.kv_width
        return max(1, self._chunk_bytes // (8 * 4 * (self._stream.hidden + kept)))

    def _some(self, numbers: Numbers, at: Columns, sampling: Sampling, ids: Numbers) -> None:
        stream, xp = self._stream, self._xp
        ends = np.flatnonzero(numbers >= 0)
        values = xp.empty((len(at), stream.hidden))
        within = np.flatnonzero(numbers < 0)
        if len(within):
            values[xp.asarray(within)] = self._inputs.of_prompts(at.requests[within], at.positions[within])
        which = numbers[ends] - self._first[at.requests[ends]]
        values[xp.asarray(ends)] = self._inputs.of_tokens(numbers[ends], at.requests[ends], which)
        finals = self._evaluator.tokens(values, at, self._chunk_bytes, self._compare_cache, self._findings.progress.add)
        finals = finals.part(xp.asarray(ends))
        most = max(1, self._chunk_bytes // (8 * 4 * (stream.vocab or stream.hidden)))
        for start in range(0, len(ends), most):
            some = slice(start, start + most)
            self._judge(numbers[ends][some], at.requests[ends][some], which[some], finals.part(some), sampling, ids)

    def _judge(
        self, numbers: Numbers, requests: Numbers, at: Numbers, finals: Graded, sampling: Sampling, ids: Numbers
    ) -> None:
        name = partial(_token, requests, at)
        if self._stream.vocab is None:
            kept = self._inputs.history(numbers)
            self._findings.judge(kept, finals, name, numbers, factor=self._factor)
            return
        logits = self._evaluator.logits(finals)
        limits = to_host(self._factor * allowed(self._xp, logits).max(axis=1))
        rms = to_host(self._xp.sqrt((logits.value**2).mean(axis=1)))
        chosen = ids[numbers].astype(np.int32)
        if sampling.kind is SamplingKind.greedy:  # without copying all logits to the host
            fits = to_host(plausible_greedy(self._xp, logits.value, chosen, limits))
        else:
            drawn = requests.astype(np.uint32), at.astype(np.uint32)
            fits = plausible(to_host(logits.value), chosen, sampling, *drawn, limits)
        what = [f"id {each} does not follow from its logits" for each in ids[numbers]]
        self._findings.refuse(~fits, name, what, limits / rms, numbers)

    def _compare_cache(self, layer: int, at: Columns, expected: Graded) -> None:
        """Compare the keys and values of some columns with those in memory. expected: [columns, 2 * kv width]."""
        assert self._left is not None
        got = self._left.at(at.requests, layer, at.positions).reshape(len(at), -1)
        name = partial(_position, layer, at.requests, at.positions)
        self._findings.judge(got, self._left.own(expected), name, factor=self._factor)
        self._findings.compared += self._steps_before_last(at)

    def _steps_before_last(self, at: Columns) -> int:
        """Return the number of steps that end at these columns, except the last steps of requests.

        `StepCheck` counts those.
        """
        stream = self._stream
        prompt = stream.asked.context_tokens[at.requests]
        chunk = np.maximum(1, prompt if stream.chunk_tokens is None else stream.chunk_tokens)
        own = at.positions - stream.table[at.requests, ChainColumn.CACHED]  # below 0: of another request's steps
        ends = (at.positions >= prompt - 1) | ((own + 1) % chunk == 0)
        last = last_of_prompt(stream, at.requests) + stream.outputs[at.requests] - 1
        return int((ends & (own >= 0) & (at.positions < last)).sum())


def _token(requests: Numbers, at: Numbers, i: int) -> str:
    return f"token {at[i]} of request {requests[i]}"


def _position(layer: int, requests: Numbers, positions: Numbers, i: int) -> str:
    return f"keys and values of layer {layer}, position {positions[i]} of request {requests[i]}"
