"""Small networks, healthy or with one thing in one module that fp16 does not survive."""
