"""From evidence to a diagnosis: the findings in order, on a terminal and as JSON."""
