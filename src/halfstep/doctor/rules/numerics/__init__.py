"""What is infinite or undefined in any format, or by rounding to 0."""
