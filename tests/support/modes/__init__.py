"""Jobs and batches for tests of modes."""
