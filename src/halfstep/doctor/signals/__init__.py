"""The signals of the record of evidence, one file each.

They are collected while a program runs, and become plain frozen data at its end. A new signal needs
no registration: a bus finds the classes in every file of this package.
"""
