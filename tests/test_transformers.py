"""The door for the Trainer of transformers: doctor's diagnosis of its training."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

pytestmark = [pytest.mark.peers, pytest.mark.slow]
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
door = pytest.importorskip("halfstep.transformers")


class Points(Dataset):
    def __init__(self):
        self.inputs = torch.randn(48, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.inputs[index, :3].argmax()}


class Net(nn.Module):
    def __init__(self, broken):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.broken, self.passes = broken, 0

    def forward(self, inputs, labels):
        self.passes += 1
        outputs = self.layers(inputs)
        loss = cross_entropy(outputs, labels)
        if self.broken and self.passes == 4:
            loss = loss * torch.log(torch.zeros(()))
        return {"loss": loss, "logits": outputs}


def train(broken, tmp_path):
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=6,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    watching = door.WatchCallback(quiet=True)
    model = Net(broken)
    transformers.Trainer(model, settings, train_dataset=Points(), callbacks=[watching]).train()
    return watching.diagnosis


def test_a_broken_training_is_explained_and_a_healthy_one_is_not(tmp_path):
    assert train(broken=True, tmp_path=tmp_path).verdicts
    assert not train(broken=False, tmp_path=tmp_path).verdicts


@pytest.mark.parametrize(("arguments", "codes"), [((), ["LOG_OF_ZERO"]), (("--mended",), [])])
def test_the_example_is_explained_until_it_is_mended(arguments, codes):
    path = Path(__file__).parents[1] / "examples" / "transformers_watch.py"
    diagnosis = runpy.run_path(str(path))["main"](*arguments)
    assert [verdict.code for verdict in diagnosis.verdicts][:1] == codes
