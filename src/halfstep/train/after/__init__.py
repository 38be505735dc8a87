"""What is done with a run that was trained: evaluate, predict, export, list, explain."""
