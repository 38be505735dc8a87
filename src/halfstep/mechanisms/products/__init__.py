"""Products of quantised tensors, which the folders of FP8 and of block formats build on.

A format contributes a `Quantiser` (`quantised.py`) and a technique derived from `ProductLayers`
(`layers.py`). `product.py` computes the product and its gradients, emulated or natively.
"""
