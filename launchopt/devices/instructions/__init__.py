"""A step as a list of instructions for the megakernel."""
