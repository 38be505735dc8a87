"""The weights are not updated as the loop intends, with or without a scaler."""
