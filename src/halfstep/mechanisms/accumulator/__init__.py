"""Products whose sums are accumulated in fp16: the field `accumulator`."""
