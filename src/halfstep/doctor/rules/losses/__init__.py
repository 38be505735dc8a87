"""A loss is called with arguments that it is not made for."""
