"""Values are kept in a format with too little precision or range."""
