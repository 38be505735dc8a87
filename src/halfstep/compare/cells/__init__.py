"""How cells run: where and when they start, their files on disk, and their progress."""
