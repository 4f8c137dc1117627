"""The GPU as a device: operands, streams, plans, events and ranges."""
