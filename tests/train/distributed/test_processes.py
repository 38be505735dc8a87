"""Two processes train as one does on their joined batches, and agree on everything."""

import socket

import pytest
import torch
import torch.multiprocessing

from . import processes


@pytest.fixture(scope="module")
def found(tmp_path_factory, tiny_file, pictures_file):
    """What each process found wrong, by check."""
    directory = tmp_path_factory.mktemp("processes")
    left = torch.multiprocessing.get_context("spawn").Event()
    given = ([free_port(), free_port()], str(directory), left, str(tiny_file), str(pictures_file))
    context = torch.multiprocessing.spawn(processes.main, given, nprocs=processes.WORLD, join=False)
    for process in context.processes:
        process.join()
    return [torch.load(directory / f"{rank}.pt") for rank in range(processes.WORLD)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("name", [*processes.names(), "a_rank_that_hangs_is_named"])
def test_on_both_processes(found, name):
    wrong = [each.get(name, "did not come so far") for each in found]
    assert wrong == ["", ""], "\n".join(wrong)
