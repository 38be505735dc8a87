"""C and C++ code for the CPU: its compilation, and functions with fewer passes than PyTorch."""
