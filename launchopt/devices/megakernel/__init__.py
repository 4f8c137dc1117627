"""The host side of the megakernel, which executes a step's instructions in one launch."""
