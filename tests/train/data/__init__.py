"""Tests of the data: sources, order, workers, augmentation and what is wrong with files."""
