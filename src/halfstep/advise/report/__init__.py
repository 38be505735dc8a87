"""What advice leaves in a directory: a config to train, all of it for programs, and a page."""
