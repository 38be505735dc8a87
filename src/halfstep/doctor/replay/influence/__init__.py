"""Finds what a loss depends on, by running the forward of the last step with other inputs."""
