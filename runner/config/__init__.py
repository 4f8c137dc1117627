"""Configuration classes, and the files and groups that fill them."""
