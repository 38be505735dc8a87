"""What a loop calls between models: heard, and kept so that a step can be run again."""
