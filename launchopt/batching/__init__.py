"""Commands in, batches out: buckets by shape or by kind of step, and the order within a request."""
