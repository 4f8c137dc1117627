"""Which settings are best for their latency: points and the frontier, as tables and as a figure."""
