"""Turns samples into batches: order, loading, transforms, augmentation."""
