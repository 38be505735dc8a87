"""From samples to batches: order, loading, transforms, augmentation."""
