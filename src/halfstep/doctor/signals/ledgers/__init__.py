"""Accounts that add up: of gradients, parameters, learning rates, writes and modes."""
