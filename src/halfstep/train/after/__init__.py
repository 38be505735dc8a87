"""Uses runs after training: evaluate, predict, export, list, and explain failures."""
