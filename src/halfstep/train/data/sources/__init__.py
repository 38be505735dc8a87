"""Where images and labels come from, and how one is read."""
