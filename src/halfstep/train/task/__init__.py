"""What a run trains, as its loop sees it: batches, a loss, and the figures of a validation."""
