"""The host side of the persistent kernel, which reads its commands from a ring."""
