"""What happens when an accumulation window closes: the step, and the work after it."""
