"""Finds the recipes that are safe for a model, and the sites that have to stay in fp32."""
