"""What is done in C on a CPU: building it, and passes over memory that PyTorch would repeat."""
