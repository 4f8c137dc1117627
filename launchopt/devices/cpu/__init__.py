"""The CPU as a device: NumPy calls on the same operands, slots and checks as on a GPU."""
