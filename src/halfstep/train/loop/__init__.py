"""The run itself: epochs and validations, what is saved when, and how a run goes on or ends."""
