"""The processes that train together, and their parts of a sharded tensor."""
