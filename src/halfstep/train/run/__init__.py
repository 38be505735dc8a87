"""A run in progress: its position, micro-batches, signals, validation, and observer interface."""
