"""The format of the model's outputs: the field `outputs`."""
