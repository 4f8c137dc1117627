"""Which runs of prompts replay one graph for all prompts of a length, and the memory of these graphs. No PyTorch here.

Each prompt has its own addresses, so a run of many prompts would capture a graph for each of them, once per run. A
graph in memory of its own serves them all: a prompt's input is copied there, and its outputs are copied back.
"""

from __future__ import annotations

from launchopt.streams.chains.chain import ChainStream, Stream


def are_shared(stream: Stream, bound: int) -> bool:
    """Return whether prompts of one length share a graph. bound: most graphs that are kept.

    Only without attention, since a graph addresses the KV caches of its requests; if there are more prompts than
    graphs; and if there are no more lengths than graphs.
    """
    if not isinstance(stream, ChainStream) or stream.attention is not None or stream.decode_kind >= 0:
        return False
    return len(stream.kinds) <= bound < stream.requests


def shared_bytes(stream: Stream, bound: int) -> int:
    """Return the most bytes of the inputs and outputs that the shared graphs have of their own."""
    if not isinstance(stream, ChainStream) or not are_shared(stream, bound):
        return 0
    rows = stream.template
    inputs = sum(kind.n for kind in stream.kinds) * stream.hidden
    outputs = int((rows["m"].astype("i8") * rows["n"]).sum())
    return (inputs + outputs) * stream.dtype.itemsize
