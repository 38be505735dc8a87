"""How weights and their averages move: who moved them, which sign a loss has, what keeps graphs."""
