"""Steps compiled into lists of instructions for the megakernel."""
