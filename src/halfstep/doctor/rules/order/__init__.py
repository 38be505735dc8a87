"""What the loop did, in which order."""
