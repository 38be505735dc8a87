"""torch's autocast around the forward pass: the field `autocast`."""
