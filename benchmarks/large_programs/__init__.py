"""Large training programs, and the faults that `doctor_large_programs.py` puts into them."""
