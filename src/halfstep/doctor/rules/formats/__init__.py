"""What is kept in a format that is too coarse or too narrow for it."""
