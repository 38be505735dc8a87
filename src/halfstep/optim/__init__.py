"""Optimizers that torch has not: LARC, LAMB, NovoGrad, and the arithmetic on lists they share."""
