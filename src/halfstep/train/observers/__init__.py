"""Who watches a run, a file each: meters, guards, probes, trackers, early stopping, doctor."""
