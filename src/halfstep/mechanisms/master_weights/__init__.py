"""fp32 copies of half parameters, which the optimizer updates: the field `master_weights`."""
