"""YAML of the Hydra groups; a package so that a wheel carries it (as runner.conf)."""
