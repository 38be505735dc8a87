"""What a data set asks of torch for each sample is not the loop's, and is not listened to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from halfstep.doctor import Watch


class Samples(Dataset):
    def __getitem__(self, number):
        return torch.full((3,), float(number)).erf(), number % 2

    def __len__(self):
        return 8


class Stream(IterableDataset):
    def __iter__(self):
        return (Samples()[number] for number in range(8))


@pytest.mark.parametrize("data", [Samples(), Stream()], ids=["map", "stream"])
def test_calls_in_a_data_set_are_not_heard_and_those_of_the_loop_are(data) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch = Watch().start()
    try:
        for images, labels in DataLoader(data, batch_size=4):
            loss = functional.cross_entropy(model(images.tanh()), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        heard = {call.name for call in watch.close().calls}
    assert "erf" not in heard
    assert {"tanh", "cross_entropy"} <= heard
