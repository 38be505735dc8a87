"""Training steps that are measured beside each other, in turns: what, by which tools, and how."""
