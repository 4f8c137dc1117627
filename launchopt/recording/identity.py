"""A short hash of a workload: two runs with the same hash executed the same commands.

    stream_hash(gemv(64, 1, 256, 1000, Dtype.fp32, 8, CommandOrder(shuffle=True)))  # '1f0c...', 32 digits

The hash of independent commands covers every record (number, request, step, op, dtype, sizes, slots), due times in an
open loop, and the experts of each token of a layer with experts. The hash of requests covers the inputs from which the
driver makes records: the records of every kind of step, the movement of operands between steps, and each request's due
time, length and slots. Both cover how quantised weights are stored. The hash covers no measured value, no content of
operands (the seed determines it) and no token
(`token_hash` covers them).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from launchopt.command import RecordWord, as_words
from launchopt.streams.chains.chain import ChainStream, Stream, chain_of
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.stream import CommandStream, commands_of

DIGEST_BYTES = 16


def stream_hash(stream: Stream) -> str:
    """Return 32 hexadecimal digits, the same on every machine."""
    digest = _of_requests(chain_of(stream)) if stream.has_steps else _of_commands(commands_of(stream))
    if stream.packing:
        digest.update(str(stream.packing).encode())
    return digest.hexdigest()


def _of_commands(stream: CommandStream) -> hashlib.blake2b:
    asked, due = _digest(), _digest()
    for block in stream.blocks():
        words = as_words(block.records)  # `blocks` makes new records at each call, so they may be changed here
        words[:, [RecordWord.ENQUEUE_NS, RecordWord.TURN]] = 0
        asked.update(_bytes(words))
        if block.due_ns is not None:
            due.update(_bytes(block.due_ns))
    asked.update(due.digest())
    if isinstance(stream, ExpertStream):
        asked.update(_bytes(stream.routing.chosen))
    return asked


def _of_requests(stream: ChainStream) -> hashlib.blake2b:
    digest = _digest()
    parts = [stream.template, stream.kind_stops, stream.replica_moves, stream.a_from, stream.b_from, stream.c_from]
    parts += [stream.table if stream.prefixes else stream.table[:, : ChainColumn.DONOR], stream.outputs]
    if stream.attention is not None:
        parts.append(stream.page_table)
    sizes = [stream.replicas, stream.chunk_tokens or 0, stream.decode_kind, stream.chunk_kind, stream.table_rows]
    for part in (np.array(sizes), *map(np.asarray, parts)):
        digest.update(f"{part.shape}".encode())
        digest.update(_bytes(part))
    return digest


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def _bytes(values: NDArray[np.generic]) -> bytes:
    """Return little-endian bytes, with integers of 64 bits: their default width depends on the platform."""
    if values.dtype.kind in "iu" and values.dtype.itemsize < 8:
        values = values.astype(np.int64)
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
