"""What a run leaves on disk: its directory, checkpoints, figures; written atomically."""
