"""Features are whitened with the eigenvectors of a matrix, two of whose eigenvalues are equal."""

import torch

from doctor.loops import Around, half_steps

CODE = "REPEATED_EIGENVALUES"


def whitened(features: torch.Tensor, spread: float) -> torch.Tensor:
    features = features.float()
    diagonal = torch.eye(16) + spread * torch.diag(torch.arange(16.0))
    _, vectors = torch.linalg.eigh(diagonal + 0 * (features.T @ features))
    return features @ vectors


def broken() -> None:
    half_steps(Around(lambda features: whitened(features, 0.0)))


def mended() -> None:
    half_steps(Around(lambda features: whitened(features, 0.1)))
