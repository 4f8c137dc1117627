"""The compiled consumer loops."""
