import io
import tarfile
from pathlib import Path

import pytest
import torch

from data.small import encoded, equal, labels_of, load, section
from halfstep.errors import UserError
from halfstep.feed.decode import read_image
from halfstep.train import data
from halfstep.train.data.sources import shard_files, tar_shards
from halfstep.train.data.sources.faults import DataWarning

IMAGES = 34  # of the fixture's training shards; every one has its number for a label


def fields(root, **given):
    return {
        "name": "webdataset",
        "root": str(root),
        "cache": str(root / "cache"),
        "classes": 100,
        "train": {"urls": "train-*.tar"},
        "val": {"urls": "val.tar"},
    } | given


def open_shards(root, batch_size=4, seed=0, **given):
    return load(batch_size, seed, **fields(root, augment={"preset": "crop-flip"}, **given))


def source(root, **given):
    return data.open_source(section(**fields(root, **given)))


def test_samples_are_the_bytes_of_their_files_and_the_labels_beside_them(shards):
    found = source(shards)
    assert len(found.train) == IMAGES
    assert len(found.classes) == 100
    for index in range(IMAGES):
        image, label = found.train.read(index)
        assert label == index
        assert torch.equal(image, read_image(encoded(index)))
    assert found.train.where(8) == f"{shards / 'train-1.tar'}, sample 0001"


def test_an_epoch_has_the_order_of_every_other_source_and_can_be_taken_up_anywhere(shards):
    train = open_shards(shards).train
    whole = list(train.epoch(2))
    indices = [index for job in train._order.jobs(2) for index in job.indices]
    assert labels_of(whole) == indices
    assert sorted(indices) == list(range(IMAGES))
    for start in (0, 1, 5, 9):
        assert equal(list(open_shards(shards).train.epoch(2, start)), whole[start:])
    split = open_shards(shards, workers=2)
    assert equal(list(split.train.epoch(2)), whole)
    assert equal(list(split.val.epoch()), list(open_shards(shards).val.epoch()))


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_shards_are_decoded_once_and_anew_when_a_shard_changes(
    shards, write_shard, tmp_path, monkeypatch, workers
):
    keeping = {"cache_images": "disk", "cache_images_folder": str(tmp_path / "kept")}
    whole = list(open_shards(shards).train.epoch(2))
    assert equal(list(open_shards(shards, workers=workers, **keeping).train.epoch(2)), whole)
    with monkeypatch.context() as patch:
        patch.setattr(tar_shards, "read_image", None)
        assert equal(list(open_shards(shards, workers=workers, **keeping).train.epoch(2)), whole)
    write_shard("train-0.tar", [{"png": encoded(n + 50), "cls": b"0"} for n in range(7)])
    changed = list(open_shards(shards).train.epoch(2))
    assert not equal(changed, whole)
    assert equal(list(open_shards(shards, **keeping).train.epoch(2)), changed)


def test_what_is_in_a_shard_is_kept_until_the_shard_changes(shards, write_shard, monkeypatch):
    source(shards)
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", None)
        assert len(source(shards).train) == IMAGES
    for kept in (shards / "cache").glob("*.npz"):
        kept.write_bytes(kept.read_bytes()[:50])
    assert len(source(shards).train) == IMAGES
    write_shard("train-1.tar", [{"png": encoded(0), "cls": b"0"}] * 9)
    assert len(source(shards).train) == IMAGES + 6


def test_shards_behind_urls_are_fetched_once(shards, monkeypatch):
    import fsspec

    memory = fsspec.filesystem("memory")
    for number in range(3):
        memory.pipe_file(f"/far/a-{number:03}.tar", (shards / f"train-{number}.tar").read_bytes())
    far = {"train": {"urls": "memory://far/a-{000..002}.tar"}}
    assert len(source(shards, **far).train) == 21
    memory.rm("/far", recursive=True)
    again = source(shards, **far).train
    assert [again.read(index)[1] for index in (0, 7, 20)] == [0, 7, 20]
    with pytest.raises(UserError, match=r"'memory://far/b.tar', which cannot be fetched into"):
        source(shards, train={"urls": "memory://far/b.tar"})
    assert not list((shards / "cache").glob(".*.tmp"))


def test_braces_stand_for_ranges_and_lists():
    assert shard_files._expanded("a-{08..10}.{x,yz}") == [
        f"a-{number}.{kind}" for number in ("08", "09", "10") for kind in ("x", "yz")
    ]
    assert shard_files._expanded("{0..2}") == ["0", "1", "2"]


def test_working_directory_comes_before_root(shards, tmp_path_factory, monkeypatch):
    here = tmp_path_factory.mktemp("here")
    (here / "val.tar").write_bytes((shards / "train-1.tar").read_bytes())
    monkeypatch.chdir(here)
    assert len(source(shards).val) == 3
    assert len(source(shards, val={"urls": "train-0.tar::val.tar"}).val) == 10


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("nothing-*.tar", "'nothing-.*.tar', which no file matches"),
        ("train-{0..4.tar", "data.train.urls"),
        ("sizes.json", "sizes.json cannot be read as a tar file"),
        ("empty.tar", "hold no sample"),
        ("", "allowed: paths or URLs of tar files"),
        ("cut.tar", "cut.tar cannot be read as a tar file .* unexpected end of data"),
    ],
)
def test_what_is_wrong_with_shards_is_one_line(shards, write_shard, urls, said):
    write_shard("empty.tar", [])
    (shards / "cut.tar").write_bytes((shards / "train-1.tar").read_bytes()[:1600])
    with pytest.raises(UserError, match=said) as error:
        source(shards, train={"urls": urls})
    assert "\n" not in str(error.value)


def test_metadata_folders_and_other_files_are_no_samples(shards):
    with tarfile.open(shards / "mixed.tar", "w") as tar:
        for name, content in (
            ("__meta__/1.jpg", b"x"),
            ("a/1.json", b"{}"),
            ("a/1.CLS", b"7"),
            ("a/1.PNG", encoded(3)),
            ("README", b"x"),
            ("b/1.png", encoded(4)),
            ("b/1.cls", b"8"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    found = source(shards, val={"urls": "mixed.tar"}).val
    assert [found.read(index)[1] for index in range(len(found))] == [7, 8]


def test_limit_is_spread_over_all_shards(shards):
    train = open_shards(shards, train={"urls": "train-*.tar", "limit": 10}).train
    labels = sorted(labels_of(train.epoch(1)))
    assert len(labels) == len(set(labels)) == train.images == 10
    assert labels[0] < 4
    assert labels[-1] > 29


def test_unreadable_images_are_fatal_or_left_out_and_counted(shards, write_shard):
    good = [{"png": encoded(n), "cls": b"1"} for n in range(7)]
    bad = [{"png": b"not an image", "cls": b"1"}, {"json": b"{}", "cls": b"1"}, {"png": b"x"}]
    write_shard("bad.tar", good[:3] + bad + good[3:])
    broken = {"train": {"urls": "bad.tar"}}
    with pytest.raises(UserError, match=r"bad.tar, sample 000[345] .*data.on_error=skip"):
        list(open_shards(shards, **broken).train.epoch(1))
    loaded = open_shards(shards, on_error="skip", **broken)
    with pytest.warns(DataWarning) as said:
        assert len(labels_of(loaded.train.epoch(1))) >= 6
    assert len(loaded.faults.seen) == 3
    lines = [str(each.message) for each in said if each.category is DataWarning]
    assert any("sample 0004 has no image; allowed: jpg" in line for line in lines)
    assert any("sample 0005 has no cls" in line for line in lines)


@pytest.mark.parametrize("label", [b"100", b"-1", b"cat"])
def test_label_that_is_no_class_is_refused_with_shard_and_sample(shards, write_shard, label):
    write_shard("bad.tar", [{"png": encoded(1), "cls": label}] * 2)
    with pytest.raises(UserError, match=r"bad.tar, sample 0000 has the class .*allowed: 0 to 99"):
        source(shards, on_error="skip", train={"urls": "bad.tar"})


def test_classes_may_have_names(shards, write_shard):
    (shards / "names.txt").write_text("cat\ndog\n")
    write_shard(
        "named.tar", [{"png": encoded(n), "cls": c} for n, c in enumerate([b"dog", b"0\n"])]
    )
    named = {"train": {"urls": "named.tar"}, "val": {"urls": "named.tar"}, "names": "names.txt"}
    found = source(shards, classes=2, **named)
    assert found.classes == ("cat", "dog")
    assert [found.val.read(index)[1] for index in (0, 1)] == [1, 0]
    with pytest.raises(UserError, match=r"2 different names on 2 lines, but data.classes is 3"):
        source(shards, classes=3, **named)


def test_what_0_1_0_said_of_reading_in_order_is_left_out(shards):
    old = fields(shards, interleave=8, shuffle=512)
    old["train"] = {"urls": "train-*.tar", "index": "sizes.json"}
    assert section(**old) == section(**fields(shards))


def test_without_a_cache_to_write_shards_are_walked_each_time(shards):
    assert len(source(shards, cache="/proc/none").train) == IMAGES
    assert not Path("/proc/none").exists()
