"""A configuration on this machine: its job, its streams and its memory."""
