"""Compute the input of a request's next token from the outputs of its last token, on the host.

Without sampling, the last output is a hidden vector; the next input is that vector, scaled and with random signs. With
sampling, the last output is logits; an id is sampled from them, and the next input is its embedding row. All arrays
are in the storage dtype (`devices.arenas`). `devices.feedback.kernel` computes the same bits on the GPU.

The signs depend on request and token. Without them, repeated layers turn every vector into the same one (layers with a
ReLU do so within a few tokens). A step that reads data of another request, or of the previous step, would then pass
the checks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import StorageScalar, from_float32, to_float32
from launchopt.sampling import GOLDEN, Sampling, SamplingKind, check_vocab, mixed, sample

Stored = NDArray[StorageScalar]
PARTIAL_SUMS = 1024  # partial sums per row: one per thread of the GPU's block; a power of two


def scaled(hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors, float32 [rows, hidden], to a root mean square of 1/sqrt(3), as uniform [-1, 1) inputs have.

    A row of zeros stays zero. Sums of squares are float64. Their order is fixed, so that a GPU gets the same roundings:
    element i is added to partial sum i % 1024; then the upper half of the sums is added to the lower half until one sum
    is left.
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
    """Return rows, [rows, hidden], with signs flipped at random; the row's request and token are the seed.

    Element i is negated if bit i % 64 of splitmix64's output number i // 64 is 1. With x = request << 32 | token, the
    generator's state starts at mixed((x + 1) * GOLDEN) modulo 2**64.
    """
    counters = (requests.astype(np.uint64) << np.uint64(32)) | tokens.astype(np.uint64)
    starts = mixed((counters + np.uint64(1)) * np.uint64(GOLDEN))
    count = values.shape[1]
    words = np.arange(1, 1 + -(-count // 64), dtype=np.uint64) * np.uint64(GOLDEN)
    bits = mixed(starts[:, None] + words)[:, :, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    turned: NDArray[np.float32] = np.where(bits.reshape(len(values), -1)[:, :count] != 0, -values, values)
    return turned


class HostFeedback:
    """Computes next inputs with NumPy. embedding: [vocab, hidden], or None without sampling.

    ConfigError: the vocabulary is too large, or empty.
    """

    def __init__(self, dtype: Dtype, sampling: Sampling, embedding: Stored | None) -> None:
        self._dtype, self._sampling = dtype, sampling
        if sampling.kind is not SamplingKind.none:
            if embedding is None:
                raise ValueError("sampling needs an embedding")
            check_vocab(sampling, len(embedding))
            self._embedding = embedding

    def advance(
        self, finals: Stored, requests: NDArray[np.uint32], tokens: NDArray[np.uint32]
    ) -> tuple[Stored, NDArray[np.int32] | None]:
        """Return the next inputs, [rows, hidden], and the ids, int32 [rows] (None without sampling).

        finals: [rows, hidden] without sampling, [rows, vocab] with it. requests, tokens: [rows]. A row of logits that
        holds a NaN gets the id NO_ID and embedding row 0.
        """
        values = to_float32(finals, self._dtype)
        if self._sampling.kind is SamplingKind.none:
            return from_float32(signed(scaled(values), requests, tokens), self._dtype), None
        ids = sample(values, self._sampling, requests, tokens)
        return self._embedding[np.maximum(ids, 0)], ids
