"""The loop calls backward, scaler and optimizer in a wrong order."""
