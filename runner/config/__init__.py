"""Configuration classes, and the YAML files and groups that give their values."""
