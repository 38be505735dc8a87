"""The learning rate is not the one that was planned, or is not used as planned."""
