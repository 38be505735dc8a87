import json
import os
from pathlib import Path

import pytest

from data.small import encoded, equal, labels_of, load
from halfstep.errors import UserError
from halfstep.train.data.shards import shard_reader
from halfstep.train.data.sources.faults import DataWarning

IMAGES = 34  # of the fixture's training shards; every one has its number for a label


def open_shards(root, batch_size=4, seed=0, **fields):
    given = {
        "name": "webdataset",
        "root": str(root),
        "classes": 100,
        "interleave": 3,
        "shuffle": 4,
        "train": {"urls": "train-*.tar"},
        "val": {"urls": "val.tar"},
        "augment": {"preset": "crop-flip"},
    }
    return load(batch_size, seed, **(given | fields))


def test_every_sample_comes_once_an_epoch_in_an_order_of_its_own(shards):
    train = open_shards(shards).train
    first, second = labels_of(train.epoch(1)), labels_of(train.epoch(2))
    assert train.images == IMAGES
    assert len(train) == 9
    assert sorted(first) == sorted(second) == list(range(IMAGES))
    assert first != second
    assert first == labels_of(open_shards(shards).train.epoch(1))
    assert first != labels_of(open_shards(shards, seed=1).train.epoch(1))


def test_workers_split_the_shards_and_change_nothing(shards):
    alone, split = open_shards(shards), open_shards(shards, workers=2)
    for epoch in (1, 2):
        assert equal(list(alone.train.epoch(epoch)), list(split.train.epoch(epoch)))
    assert equal(list(alone.val.epoch()), list(split.val.epoch()))


def test_each_shard_is_read_once_and_by_one_worker(shards, tmp_path, monkeypatch):
    def noting(url):
        with (tmp_path / "opened").open("a") as log:
            log.write(f"{url} {os.getpid()}\n")
        return Path(url).open("rb")

    monkeypatch.setattr(shard_reader, "gopen", noting)
    list(open_shards(shards, workers=2).train.epoch(1))
    opened = [line.split() for line in (tmp_path / "opened").read_text().splitlines()]
    assert sorted(url for url, _ in opened) == sorted(map(str, shards.glob("train-*.tar")))
    assert len({process for _, process in opened}) == 2
    assert str(os.getpid()) not in {process for _, process in opened}


def test_epoch_from_any_batch_is_bitwise_the_tail(shards):
    data = open_shards(shards)
    whole = list(data.train.epoch(2))
    for start in (0, 1, 4, 8, 9):
        assert equal(list(open_shards(shards).train.epoch(2, start)), whole[start:])
    with pytest.raises(ValueError, match="start is 10; allowed: 0 to 9"):
        data.train.epoch(2, 10)


def test_an_epoch_can_be_taken_up_again_from_before_where_it_was_left(shards):
    data = open_shards(shards)
    whole = list(open_shards(shards).train.epoch(1))
    left = data.train.epoch(1)
    for _ in range(6):
        next(left)
    assert equal(list(data.train.epoch(1, 1)), whole[1:])


def test_workers_go_on_after_an_epoch_that_was_broken_off(shards):
    data = open_shards(shards, workers=2)
    whole = list(open_shards(shards).train.epoch(3))
    broken_off = data.train.epoch(2)
    next(broken_off)
    next(broken_off)
    assert equal(list(data.train.epoch(3)), whole)
    assert equal(list(data.train.epoch(3, 4)), whole[4:])


@pytest.mark.parametrize("interleave", [1, 3])
def test_a_batch_mixes_the_shards_that_are_read_side_by_side(shards, interleave):
    shard_of = [0] * 7 + [1] * 3 + [2] * 11 + [3] * 5 + [4] * 8
    _, labels = next(open_shards(shards, 3, interleave=interleave).train.epoch(1))
    assert len({shard_of[label] for label in labels.tolist()}) == interleave


def test_samples_are_shuffled_within_the_window_alone(shards):
    one = {"interleave": 1, "train": {"urls": "train-2.tar"}}
    assert labels_of(open_shards(shards, shuffle=1, **one).train.epoch(1)) == list(range(10, 21))
    shuffled = labels_of(open_shards(shards, shuffle=4, **one).train.epoch(1))
    assert shuffled != list(range(10, 21))
    windows = [shuffled[:4], shuffled[4:8], shuffled[8:]]
    assert [sorted(window) for window in windows] == [
        [10, 11, 12, 13],
        [14, 15, 16, 17],
        [18, 19, 20],
    ]


def test_augmentation_is_an_images_own_in_each_epoch(shards):
    data = open_shards(shards)
    pixels = [
        {
            int(label): image
            for images, labels in data.train.epoch(e)
            for image, label in zip(images, labels, strict=True)
        }
        for e in (1, 2)
    ]
    assert any(not pixels[0][n].equal(pixels[1][n]) for n in range(IMAGES))
    plain = open_shards(shards, augment={}).train
    assert [len(images) for images, _ in plain.epoch(1)] == [4] * 8 + [2]


def test_last_batch_of_a_single_image_is_left_out_in_training_alone(shards):
    one_over = {"train": {"urls": "train-0.tar"}, "val": {"urls": "train-0.tar"}}
    data = open_shards(shards, 3, **one_over)
    assert [len(labels) for _, labels in data.train.epoch(1)] == [3, 3]
    assert [len(labels) for _, labels in data.val.epoch()] == [3, 3, 1]


def test_limit_takes_the_first_samples_of_every_shard(shards):
    train = open_shards(shards, train={"urls": "train-*.tar", "limit": 10}).train
    labels = sorted(labels_of(train.epoch(1)))
    assert len(labels) == train.images == 10
    assert labels == [0, 1, 2, 10, 11, 12, 13, 21, 26, 27]


def test_unreadable_images_are_fatal_or_left_out_and_counted(shards, write_shard):
    good = [{"png": encoded(n), "cls": b"1"} for n in range(6)]
    bad = [{"png": b"not an image", "cls": b"1"}, {"json": b"{}", "cls": b"1"}]
    write_shard("bad.tar", good[:3] + bad + good[3:])
    broken = {"train": {"urls": "bad.tar"}}
    with pytest.raises(UserError, match=r"bad.tar, sample 000[34] .*data.on_error=skip"):
        list(open_shards(shards, **broken).train.epoch(1))
    data = open_shards(shards, on_error="skip", **broken)
    with pytest.warns(DataWarning) as said:
        assert len(labels_of(data.train.epoch(1))) == 6
    list(data.train.epoch(2))
    assert data.skipped == 2
    lines = [str(each.message) for each in said if each.category is DataWarning]
    assert len(lines) == 2
    assert any("sample 0004 has json, cls; allowed: jpg" in line for line in lines)


def test_batch_with_too_few_readable_images_ends_training(shards, write_shard):
    write_shard("bad.tar", [{"png": b"no", "cls": b"1"}] * 3 + [{"png": encoded(1), "cls": b"1"}])
    data = open_shards(shards, on_error="skip", train={"urls": "bad.tar"}, val={"urls": "bad.tar"})
    with pytest.warns(DataWarning), pytest.raises(UserError, match="too few images of a batch"):
        list(data.train.epoch(1))
    assert labels_of(data.val.epoch()) == [1]


@pytest.mark.parametrize("label", [b"100", b"-1", b"cat", b""])
def test_label_that_is_no_class_is_refused_with_shard_and_sample(shards, write_shard, label):
    write_shard("bad.tar", [{"png": encoded(1), "cls": label}] * 2)
    with pytest.raises(UserError, match=r"bad.tar, sample 000. has the class .*allowed: 0 to 99"):
        list(open_shards(shards, on_error="skip", train={"urls": "bad.tar"}).train.epoch(1))


def test_classes_may_have_names(shards, write_shard):
    (shards / "names.txt").write_text("cat\ndog\n")
    write_shard(
        "named.tar", [{"png": encoded(n), "cls": c} for n, c in enumerate([b"dog", b"0\n"])]
    )
    named = {"train": {"urls": "named.tar"}, "val": {"urls": "named.tar"}, "names": "names.txt"}
    data = open_shards(shards, classes=2, **named)
    assert data.classes == ("cat", "dog")
    assert labels_of(data.val.epoch()) == [1, 0]
    with pytest.raises(UserError, match=r"2 different names on 2 lines, but data.classes is 3"):
        open_shards(shards, classes=3, **named)


def test_shard_that_ends_early_or_is_cut_off_is_named(shards):
    counted = json.loads((shards / "sizes.json").read_text()) | {"train-1.tar": 5}
    (shards / "wrong.json").write_text(json.dumps(counted))
    train = {"urls": "train-*.tar", "index": "wrong.json"}
    with pytest.raises(
        UserError, match=r"train-1.tar ends after 3 samples, and its index has more"
    ):
        list(open_shards(shards, train=train).train.epoch(1))
    whole = (shards / "train-1.tar").read_bytes()
    (shards / "train-1.tar").write_bytes(whole[:1600])
    train = {"urls": "train-*.tar", "index": "sizes.json"}
    with pytest.raises(UserError, match=r"train-1.tar (is damaged|ends) after"):
        list(open_shards(shards, train=train).train.epoch(1))
