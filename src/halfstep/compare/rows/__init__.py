"""From the summaries of cells to rows: means, intervals, what they advise, what is predicted."""
