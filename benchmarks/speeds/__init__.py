"""Fitting the cost model to published speeds: cases, the regression, and its errors."""
