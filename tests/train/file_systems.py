"""File systems that are really full, or really read-only, where mounting them is allowed."""

import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def of_size(folder, size):
    """Mount a tmpfs of so many bytes; the test is skipped where that is not allowed."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def read_only(folder):
    """Let nothing be written below a folder; the test is skipped where that cannot be had.

    Root may write whatever the mode says, so for root the folder is mounted over itself.
    """
    if os.geteuid():
        modes = {each: each.stat().st_mode for each in [folder, *folder.rglob("*/")]}
        for each in modes:
            each.chmod(0o555)
        try:
            yield
        finally:
            for each, mode in modes.items():
                each.chmod(mode)
        return
    _mount("--bind", folder, folder)
    try:
        _mount("-o", "remount,bind,ro", folder)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def _mount(*options):
    mounted = subprocess.run(["mount", *options], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"may not mount: {mounted.stderr.decode().strip()}")
