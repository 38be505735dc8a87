"""The loop calls backward, scaler and optimizer in the wrong order."""
