"""NVFP4: blocks of 16 four-bit elements with FP8 scales under one fp32 scale: the field `nvfp4`."""
