"""What is asked for, which cells that makes, and what is refused before one starts."""
