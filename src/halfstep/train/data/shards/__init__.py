"""Data sets in tar files, read in their order."""
