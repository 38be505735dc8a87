"""Analyses a program: levels, forward passes, steps, and the reasons not to rewrite it."""
