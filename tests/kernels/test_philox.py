"""The random numbers of kernels are those of Philox."""

import torch

from halfstep.kernels.philox import philox


def test_random_words_are_those_of_philox():
    """Known answers of Random123, the authors' own implementation (kat_vectors, philox4x32 10)."""
    counter = torch.tensor([0])
    assert [f"{int(word):08x}" for word in philox((counter, 0, 0, 0), 0)] == [
        "6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8",
    ]  # fmt: skip
