"""Small tasks on which recipes are ranked: those in view while choosing, and those held out."""
