"""Watches a program: the hooks in torch, and the reactions to their events."""
