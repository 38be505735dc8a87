"""Programs about samples, their order, and how they are given to a model."""
