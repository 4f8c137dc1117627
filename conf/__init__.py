"""YAML files of the Hydra groups. This is a package so that a wheel contains them (as runner.conf)."""
