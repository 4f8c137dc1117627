"""Programs of the megakernel, and what stands in for its GPU."""
