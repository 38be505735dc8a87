"""Regression with `halfstep.fit`: the progression of diabetes, from scikit-learn's table.

python examples/regression.py                 # one training, under bf16
python examples/regression.py --compare       # fp32 and bf16, three seeds each
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import halfstep


def build() -> dict[str, Any]:
    """Return what `halfstep.fit` takes."""
    table = load_diabetes()
    inputs = torch.tensor(table.data, dtype=torch.float32) * 20  # so that columns have variance 1
    targets = torch.tensor(table.target, dtype=torch.float32)[:, None] / 100
    split = torch.Generator().manual_seed(0)
    train, held_out = random_split(TensorDataset(inputs, targets), [0.8, 0.2], split)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01),
        "train_loader": DataLoader(train, 32, shuffle=True),
        "val_loader": DataLoader(held_out, 89),
        "loss": nn.functional.mse_loss,
        "metrics": {"mae": nn.functional.l1_loss},
        "monitor": "mae",
        "mode": "min",
        "epochs": 8,
    }


def main(arguments: list[str] | None = None) -> Any:
    """Train once or compare; return the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compare", action="store_true", help="compare two recipes")
    with tempfile.TemporaryDirectory() as out:
        if parser.parse_args(arguments).compare:
            return halfstep.compare(build, ["fp32", "bf16"], seeds=3, margin=0.05, out=out)
        torch.manual_seed(0)
        fitted = halfstep.fit(**build(), recipe="bf16", out=out)
    print(f"mean absolute error {100 * fitted.best['mae']:.0f} of values from 25 to 346")
    return fitted


if __name__ == "__main__":
    main()
