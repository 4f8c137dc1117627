"""Programs of the megakernel, and fakes of its GPU."""
