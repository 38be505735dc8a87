import os
import sys

from halfstep.bench import spawned


def test_a_process_is_told_what_torchrun_would_tell_it(monkeypatch):
    told = {}

    def run_module(name, run_name):
        told.update(os.environ, module=name, name=run_name, arguments=list(sys.argv))

    monkeypatch.setattr(spawned.runpy, "run_module", run_module)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    spawned._work(1, 2, 1234, ["train", "digits"])
    assert told["arguments"] == ["halfstep", "train", "digits"]
    assert (told["module"], told["name"]) == ("halfstep", "__main__")
    assert (told["RANK"], told["LOCAL_RANK"]) == ("1", "1")
    assert (told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("2", "2")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("localhost", "1234")
