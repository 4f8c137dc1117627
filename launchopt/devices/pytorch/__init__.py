"""Commands, batches and steps as PyTorch runs them."""
