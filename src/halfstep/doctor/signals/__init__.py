"""The signals of the record of evidence, one file each.

They are collected while a program runs, and become plain frozen data at its end.
"""
