"""A format has too little precision or range for its values, or does not suit an operator."""
