"""The format of `.grad` of half parameters: the field `gradients`."""
