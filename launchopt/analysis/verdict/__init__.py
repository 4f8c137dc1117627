"""What bounds a run, and which strategy to try first."""
