"""Models, from their model cards."""

from launchopt.interface import Model

SMOLLM2_135M = Model(
    name="smollm2_135m",
    hidden=576,
    layers=30,
    q_heads=9,
    kv_heads=3,
    head_dim=64,
    intermediate=1536,
    vocab=49152,
)
