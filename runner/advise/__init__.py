"""Advice for a model, a trace or a list of GEMMs: which stack to switch on, with which batching, and what it gains.

`candidates` lists the stacks that run here, `trials` runs them within a budget, `halving` decides between them, and
`answer` words the result.
"""
