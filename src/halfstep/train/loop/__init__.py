"""The loop of a run: epochs, validation, saving and resuming checkpoints, and the run's end."""
