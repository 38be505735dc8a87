"""The loss scale: the field `loss_scale`, and the arithmetic that the engine and `apex` share."""
