"""The rows of the tables, made from the results of cells: means, intervals, advice, predictions."""
