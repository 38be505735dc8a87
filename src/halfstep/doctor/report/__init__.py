"""From evidence to what is said: the rules' findings in order, on a terminal and as JSON."""
