"""GPUs, or processes of the CPU device, that split each layer of a model: their memory, their flags, their sums."""
