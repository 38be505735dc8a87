"""The loss scale collapses, grows without limit, is not saved, or is missing."""
