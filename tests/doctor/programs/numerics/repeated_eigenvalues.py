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


def broken_in_singular_vectors() -> None:
    def own(features):
        vectors, _, _ = torch.linalg.svd(torch.eye(16) + 0 * (features.T @ features).float())
        return features @ vectors

    half_steps(Around(own))


def broken_by_a_singular_value_of_0() -> None:
    tall = torch.zeros(5, 3)
    tall[0, 0], tall[1, 1] = 3.0, 2.0
    matrix = torch.nn.Parameter(tall)
    optimizer = torch.optim.SGD([matrix], lr=0.05)
    torch.linalg.svd(matrix, full_matrices=False)[0].cumsum(0).square().sum().backward()
    optimizer.step()
