import os
import signal

import pytest

from halfstep.cli import main
from halfstep.cli.interrupts import Interrupts


def test_an_interrupt_that_a_library_hides_still_counts(monkeypatch, capsys):
    def hides(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise RecursionError("of a library's own") from None

    monkeypatch.setattr("halfstep.train.config.files.load", hides)
    assert main(["train", "digits"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_callers_own_is_left_alone():
    def own(*_):
        pass

    before = signal.signal(signal.SIGINT, own)
    try:
        with Interrupts() as interrupts:
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert not interrupts.seen


def test_an_error_without_an_interrupt_is_no_interrupt(monkeypatch):
    def fails(*_, **__):
        raise RecursionError("of a library's own")

    monkeypatch.setattr("halfstep.train.config.files.load", fails)
    with pytest.raises(RecursionError):
        main(["train", "digits"])
