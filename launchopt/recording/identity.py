"""What a stream asks for, as one short hash: two runs with the same one were asked for the same commands.

Of independent commands every record counts, with all that it asks for (number, request, step, op, dtype, sizes, slots)
and, in an open loop, when it is due; nothing that is measured. Of requests the records are made while they run, in the
order in which tokens are done. There what they are made from counts: the records of every kind of step, where operands
move from one step to the next, and of each request when it is due, how long it is and where it lies.

    stream_hash(gemv(64, 1, 256, 1000, Dtype.fp32, replicas=8, shuffle=True, seed=0))  # '1f0c...', 32 digits

What operands hold follows from the seed and the arenas; it is no part of this, nor are the tokens (`token_hash`).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_ENQUEUE, W_TURN, as_words
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.stream import CommandStream

DIGEST_BYTES = 16


def stream_hash(stream: CommandStream | ChainStream) -> str:
    """Hexadecimal; the same on every machine."""
    digest = _of_requests(stream) if isinstance(stream, ChainStream) else _of_commands(stream)
    return digest.hexdigest()


def _of_commands(stream: CommandStream) -> hashlib.blake2b:
    asked, due = _digest(), _digest()
    for block in stream.blocks():
        words = as_words(block.records)  # a block is made anew each time: it is ours to change
        words[:, [W_ENQUEUE, W_TURN]] = 0
        asked.update(_bytes(words))
        if block.due_ns is not None:
            due.update(_bytes(block.due_ns))
    asked.update(due.digest())
    return asked


def _of_requests(stream: ChainStream) -> hashlib.blake2b:
    digest = _digest()
    parts = [stream.template, stream.kind_stops, stream.replica_moves, stream.a_from, stream.b_from, stream.c_from]
    parts += [stream.table, stream.outputs]
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
    """Little-endian; integers as they are wide, so that no platform's own width counts."""
    if values.dtype.kind in "iu" and values.dtype.itemsize < 8:
        values = values.astype(np.int64)
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
