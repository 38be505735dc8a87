"""The error that ends any part of the advice when its time budget is spent."""

from __future__ import annotations


class BudgetSpentError(Exception):
    """The time budget does not suffice for the next action."""
