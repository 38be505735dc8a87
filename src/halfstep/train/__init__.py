"""From a config to a run: data, model, optimizer, the loop, and the directory that a run leaves.

`config` does not import torch, so that listing and checking configs stays instant;
everything that trains starts at `loop.train`.
"""
