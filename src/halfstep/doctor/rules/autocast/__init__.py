"""Where autocast and the compiler do not do what was meant."""
