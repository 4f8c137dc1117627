"""From the last outputs of a token to the inputs of the next one, on the host.

In: what the last command of each request's token gave, in storage dtype (`devices.arenas`). Without sampling that is a
hidden vector, which goes back scaled and with random signs; with sampling it is logits, from which an id is sampled
whose embedding row goes back. `devices.gpu_feedback` does the same, to the bit, on the GPU.

The signs are the request's and the token's own. Without them whatever is applied again and again turns any vector into
the same one (layers with a ReLU within a few tokens), and who reads another request's data, or that of the step before,
reads what is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.sampling import GOLDEN, Sampling, SamplingKind, check_vocab, mixed, sample

PARTIAL_SUMS = 1024  # a power of two; the GPU's threads a row


def scaled(hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors, float32 [rows, hidden], scaled to a root mean square of 1/sqrt(3): that of uniform [-1, 1) inputs.

    Zeros stay zeros. Sums of squares are float64 in an order that a GPU can follow, so that it rounds alike: element i
    goes into partial sum i % 1024, of which the upper half is then added to the lower until one is left.
    """
    rows, count = hidden.shape
    padded = np.zeros((rows, -(-count // PARTIAL_SUMS) * PARTIAL_SUMS))
    padded[:, :count] = hidden
    with np.errstate(invalid="ignore"):  # an infinite input gives NaN
        sums = np.zeros((rows, PARTIAL_SUMS))
        for start in range(0, count, PARTIAL_SUMS):
            sums += padded[:, start : start + PARTIAL_SUMS] ** 2
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
        factors = np.ones((rows, 1))
        np.divide(float(count), 3.0 * sums, out=factors, where=sums != 0)
        factors = np.sqrt(factors)
        values: NDArray[np.float32] = (padded[:, :count] * factors).astype(np.float32)
    return values


def signed(
    values: NDArray[np.float32], requests: NDArray[np.uint32], tokens: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """Rows with the signs of elements turned at random, as the request and the token of the row say; [rows, hidden].

    Element i by bit i % 64 of splitmix64's number i / 64 of a generator started with the mixed (request << 32 | token).
    """
    counters = (requests.astype(np.uint64) << np.uint64(32)) | tokens.astype(np.uint64)
    starts = mixed((counters + np.uint64(1)) * np.uint64(GOLDEN))
    count = values.shape[1]
    words = np.arange(1, 1 + -(-count // 64), dtype=np.uint64) * np.uint64(GOLDEN)
    bits = mixed(starts[:, None] + words)[:, :, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    turned: NDArray[np.float32] = np.where(bits.reshape(len(values), -1)[:, :count] != 0, -values, values)
    return turned


class HostFeedback:
    """Samples with NumPy. ConfigError if nothing can be sampled from a vocabulary of this size.

    embedding: storage [vocab, hidden]; None where nothing is sampled.
    """

    def __init__(self, dtype: Dtype, sampling: Sampling, embedding: NDArray[Any] | None) -> None:
        self._dtype, self._sampling = dtype, sampling
        if sampling.kind is not SamplingKind.none:
            if embedding is None:
                raise ValueError("sampling needs an embedding")
            check_vocab(sampling, len(embedding))
            self._embedding = embedding

    def advance(
        self, finals: NDArray[Any], requests: NDArray[np.uint32], tokens: NDArray[np.uint32]
    ) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
        """The next inputs, storage [rows, hidden], and the ids, int32 [rows], None without sampling.

        finals: storage [rows, hidden] without sampling, [rows, vocab] with it; requests, tokens: [rows]. A row of
        logits that holds a NaN has the id NO_ID and goes on with embedding row 0.
        """
        values = to_float32(finals, self._dtype)
        if self._sampling.kind is SamplingKind.none:
            return from_float32(signed(scaled(values), requests, tokens), self._dtype), None
        ids = sample(values, self._sampling, requests, tokens)
        return self._embedding[np.maximum(ids, 0)], ids
