"""The actions of a loop, one signal each: calls of models, backward passes, steps, and others.

A method that gets the original function runs the program's call exactly once and unchanged, and
does doctor's own work before and after the call.
"""
