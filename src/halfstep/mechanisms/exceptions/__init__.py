"""Modules and operators that compute in a format of their own: the field `exceptions`."""
