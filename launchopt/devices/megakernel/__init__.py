"""The host side of the megakernel, which runs a step's instructions in one launch."""
