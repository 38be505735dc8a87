"""What is written in the place of amp, on `halfstep.Engine` or on `torch.amp`."""
