"""The children's side of a run: producer, driver and consumer processes."""
