"""The CPU as a device: NumPy calls, with the same operands, slots and verification as on a GPU."""
