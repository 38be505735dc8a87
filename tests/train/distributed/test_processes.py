"""Two processes train as one does on their joined batches, and agree on everything."""

import socket

import pytest
import torch
import torch.multiprocessing

import warm

from . import processes


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def spawned(directory, tiny_file, pictures_file):
    """Let so many processes run checks; gives what each found wrong, by check."""

    def run(names, world):
        left = warm.CONTEXT.Event()
        ports = [free_port(), free_port()]
        given = (names, world, ports, str(directory), left, str(tiny_file), str(pictures_file))
        context = torch.multiprocessing.start_processes(
            processes.main, given, world, join=False, start_method=warm.CONTEXT.get_start_method()
        )
        for process in context.processes:
            process.join()
        return [torch.load(directory / f"{world}-{rank}.pt") for rank in range(world)]

    return run


@pytest.fixture(scope="module")
def found(spawned):
    return spawned(processes.names(), 2)


@pytest.fixture(scope="module")
def found_by_four(spawned, found):
    assert found, "two processes leave what four go on with"
    return spawned(processes.OF_FOUR, 4)


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def assert_nothing_wrong(found, name):
    wrong = [each.get(name, "did not come so far") for each in found]
    assert not any(wrong), "\n".join(wrong)


@pytest.mark.parametrize("name", processes.names())
def test_on_both_processes(found, name):
    assert_nothing_wrong(found, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", processes.OF_FOUR)
def test_on_four_processes(found_by_four, name):
    assert_nothing_wrong(found_by_four, name)
