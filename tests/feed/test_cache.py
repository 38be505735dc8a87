"""A cache gives the pixels that were put there, or none, whatever happens to it and its users."""

import multiprocessing
import os
import pickle
import threading
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from halfstep.errors import UserError
from halfstep.feed import CacheWarning, ImageCache
from halfstep.feed.image_file import ImageFile

GB = 0.002
"""Room for the table and some 1.9 MB of pixels."""


def picture(number, height=20, width=30, *, interleaved=True):
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    return image if interleaved else image.contiguous()


def key(number):
    return number.to_bytes(16, "big", signed=False)[::-1]


def whole(image, number, **given):
    wanted = picture(number, **given)
    return torch.equal(image, wanted) and image.stride() == wanted.stride()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("place", [None, "some.images"])
def test_an_image_comes_back_with_its_pixels_and_their_order_in_memory(
    tmp_path, place, interleaved
):
    cache = ImageCache(place and tmp_path / "new" / place, gigabytes=GB)
    cache.put(key(1), picture(1, interleaved=interleaved))
    assert whole(cache.get(key(1)), 1, interleaved=interleaved)
    assert cache.get(key(2)) is None
    cache.get(key(1)).zero_()
    assert whole(cache.get(key(1)), 1, interleaved=interleaved)


def test_what_lies_on_disk_is_there_for_the_next_program_and_more_fits_behind(tmp_path):
    for number in range(1, 4):
        cache = ImageCache(tmp_path / "some.images", gigabytes=GB)
        cache.put(key(number), picture(number))
        del cache
    cache = ImageCache(tmp_path / "some.images", gigabytes=GB)
    assert all(whole(cache.get(key(number)), number) for number in range(1, 4))


class Pictures(Dataset):
    def __init__(self, cache, count):
        self.cache, self.count = cache, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        found = self.cache.get(key(index + 1))
        if found is None:
            self.cache.put(key(index + 1), picture(index + 1))
        return index, found is not None


def test_workers_share_one_cache():
    cache = ImageCache(gigabytes=GB)
    loader = DataLoader(Pictures(cache, 40), num_workers=2, batch_size=5)
    for epoch in range(2):
        assert torch.cat([found for _, found in loader]).tolist() == [epoch == 1] * 40
    assert all(whole(cache.get(key(number)), number) for number in range(1, 41))


def test_a_worker_that_is_sent_a_cache_has_the_same_one():
    cache = ImageCache(gigabytes=GB)
    cache.put(key(1), picture(1))
    sent = pickle.loads(pickle.dumps(cache))
    assert whole(sent.get(key(1)), 1)
    sent.put(key(2), picture(2))
    assert whole(cache.get(key(2)), 2)


@pytest.mark.parametrize(
    "start_others", [threading, multiprocessing.get_context("fork")], ids=["threads", "processes"]
)
def test_users_of_one_file_append_one_after_the_other(tmp_path, monkeypatch, start_others):
    caches = [ImageCache(tmp_path / "some.images", gigabytes=GB) for _ in range(2)]
    append, meeting, met = ImageFile.append, start_others.Barrier(2), []

    def append_after_the_other_came(self, *given):
        with suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.3)  # in vain, where one waits for the other's end
            met.append(self)
        return append(self, *given)

    monkeypatch.setattr(ImageFile, "append", append_after_the_other_came)
    kind = getattr(start_others, "Thread", None) or start_others.Process
    other = kind(target=caches[1].put, args=(key(2), picture(2)))
    other.start()
    caches[0].put(key(1), picture(1))
    other.join()
    assert not met
    assert all(whole(cache.get(key(number)), number) for cache in caches for number in (1, 2))


def test_a_full_cache_takes_no_more_than_it_may_and_says_so_once(tmp_path):
    file = tmp_path / "some.images"
    cache = ImageCache(file, gigabytes=GB)
    with warnings.catch_warnings(action="error"):
        cache.warn_if_full()
    for number in range(1, 2001):
        cache.put(key(number), picture(number))
    kept = [number for number in range(1, 2001) if cache.get(key(number)) is not None]
    assert 1000 < len(kept) < 2000
    assert whole(cache.get(key(kept[-1])), kept[-1])
    assert file.stat().st_size <= GB * 1e9
    with pytest.warns(CacheWarning, match=r"is full, with .* of 0\.002 GB"):
        cache.warn_if_full()
    with warnings.catch_warnings(action="error"):
        cache.warn_if_full()
    again = ImageCache(file, gigabytes=GB)
    again.put(key(kept[0]), picture(kept[0]))
    assert whole(again.get(key(kept[0])), kept[0])


@pytest.mark.parametrize("where", ["pixels", "entry", "end"])
def test_damage_gives_no_wrong_image_and_is_mended(tmp_path, where):
    file = tmp_path / "some.images"
    cache = ImageCache(file, gigabytes=GB)
    for number in (1, 2):
        cache.put(key(number), picture(number))
    content = bytearray(file.read_bytes())
    if where == "end":  # as a power failure leaves it that has lost the newest page of the header
        content[16:24] = (len(content) - 2 * 1800).to_bytes(8, "little")
    else:
        entry = content.index(key(1))
        content[len(content) - 1800 - 900 if where == "pixels" else entry + 24] ^= 1
    file.write_bytes(content)
    again = ImageCache(file, gigabytes=GB)
    if where == "end":
        assert whole(again.get(key(1)), 1)
    else:
        assert again.get(key(1)) is None
        again.put(key(1), picture(1))
    again.put(key(3), picture(3))
    newest = ImageCache(file, gigabytes=GB)
    assert all(whole(newest.get(key(number)), number) for number in (1, 2, 3))


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path):
    file = tmp_path / "some.images"
    cache = ImageCache(file, gigabytes=GB)
    for number in (1, 2):
        cache.put(key(number), picture(number))
    os.truncate(file, file.stat().st_size - 1)
    assert whole(cache.get(key(1)), 1)
    assert cache.get(key(2)) is None


def keep_writing(file):
    cache = ImageCache(file, gigabytes=0.05)
    for number in range(1, 5000):  # as many as fit, however late the kill comes
        cache.put(key(number), picture(number % 50))


@pytest.mark.parametrize("images", [1, 40, 200])
def test_programs_that_are_killed_while_they_write_leave_whole_images(tmp_path, images):
    file = tmp_path / "some.images"
    cache = ImageCache(file, gigabytes=0.05)
    writer = multiprocessing.get_context("fork").Process(target=keep_writing, args=(file,))
    writer.start()
    while cache.get(key(images)) is None:
        pass
    writer.kill()
    writer.join()
    found = {n: image for n in range(1, 5000) if (image := cache.get(key(n))) is not None}
    assert len(found) >= images
    assert all(whole(image, number % 50) for number, image in found.items())
    cache.put(key(200_000), picture(7))  # the lock went with its holder
    assert whole(cache.get(key(200_000)), 7)


def test_a_file_that_changes_is_read_again_and_its_parts_are_told_apart(tmp_path, monkeypatch):
    cache, file, reads = ImageCache(gigabytes=GB), tmp_path / "some.jpg", []

    def read(path):
        reads.append(path)
        return picture(path.stat().st_size)

    file.write_bytes(b"123")
    for _ in range(2):
        assert whole(cache.read(file, read), 3)
    assert len(reads) == 1
    cache.read(file, read, 7)
    assert len(reads) == 2
    file.write_bytes(b"1234")
    assert whole(cache.read(file, read), 4)
    os.utime(file, ns=(0, 0))
    cache.read(file, read)
    assert len(reads) == 4
    monkeypatch.setattr("halfstep.feed.cache._decoders", lambda: ("pillow of next year",))
    cache.read(file, read)
    assert len(reads) == 5


def test_what_is_no_cache_stays_and_another_size_begins_anew(tmp_path):
    file = tmp_path / "leaf.jpg"
    file.write_bytes(b"some photograph")
    with pytest.raises(UserError, match=r"^'.*leaf\.jpg' is not an image cache"):
        ImageCache(file, gigabytes=GB)
    assert file.read_bytes() == b"some photograph"
    with pytest.raises(UserError, match="cannot be created: Is a directory"):
        ImageCache(tmp_path, gigabytes=GB)
    with pytest.raises(UserError, match=r"a cache of 1e-06 GB holds no image"):
        ImageCache(gigabytes=1e-6)
    cache = ImageCache(tmp_path / "some.images", gigabytes=GB)
    cache.put(key(1), picture(1))
    larger = ImageCache(tmp_path / "some.images", gigabytes=2 * GB)
    assert larger.get(key(1)) is None
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    assert whole(cache.get(key(1)), 1)
