"""Steps that are recorded once and replayed, as CUDA graphs."""
