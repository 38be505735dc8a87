"""A run of a program's own objects, `halfstep.fit`: any model, loss and batches."""
