"""What half formats have no room for."""
