"""A step's outputs become the next step's inputs."""
