import json

import numpy as np
import pytest

from data.small import encoded
from halfstep.errors import UserError
from halfstep.train.config.data import ShardsConfig
from halfstep.train.data.shards.shards import Shards, find, positions


def test_shards_on_disk_are_counted_as_webdataset_groups_their_files(shards):
    found = find(ShardsConfig(urls="train-{0..4}.tar"), shards, "train")
    assert found.counts == (7, 3, 11, 5, 8)
    assert found.urls == tuple(str(shards / f"train-{n}.tar") for n in range(5))
    assert find(ShardsConfig(urls="train-*.tar"), shards, "train") == found
    assert find(ShardsConfig(urls="train-0.tar::val.tar"), shards, "train").counts == (7, 6)


def test_working_directory_comes_before_root(shards, tmp_path_factory, monkeypatch, write_shard):
    here = tmp_path_factory.mktemp("here")
    (here / "val.tar").write_bytes((shards / "train-1.tar").read_bytes())
    monkeypatch.chdir(here)
    assert find(ShardsConfig(urls="val.tar"), shards, "val").counts == (3,)


def test_index_saves_counting_and_serves_urls(shards):
    (shards / "sizes.json").write_text(json.dumps({"a-0.tar": 5, "a-1.tar": 6}))
    config = ShardsConfig(urls="https://nowhere.invalid/x/a-{0..1}.tar", index="sizes.json")
    assert find(config, shards, "train").counts == (5, 6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"urls": "https://nowhere.invalid/a.tar"}, 'data.train.index=sizes.json.*{"a.tar": 1000}'),
        ({"urls": "nothing-*.tar"}, "'nothing-.*.tar', which no file matches"),
        ({"urls": "train-{0..4.tar"}, "data.train.urls"),
        ({"urls": "sizes.json"}, "sizes.json cannot be read as a tar file"),
        ({"urls": "train-0.tar", "index": "val.tar"}, "no JSON file"),
        ({"urls": "train-0.tar", "index": "list.json"}, "no mapping"),
        ({"urls": "train-0.tar", "index": "other.json"}, "None samples for 'train-0.tar'"),
        ({"urls": "train-0.tar", "index": "gone.json"}, "there is no file"),
        ({"urls": "empty.tar"}, "hold no sample"),
    ],
)
def test_what_is_wrong_with_shards_is_one_line(shards, write_shard, fields, said):
    write_shard("empty.tar", [])
    (shards / "list.json").write_text("[1]")
    (shards / "other.json").write_text('{"train-1.tar": 3}')
    with pytest.raises(UserError, match=said) as error:
        find(ShardsConfig(**fields), shards, "train")
    assert "\n" not in str(error.value)


def test_metadata_and_folders_are_no_samples(shards, write_shard):
    shard = write_shard("meta.tar", [{"png": encoded(1), "cls": b"1"}])
    assert find(ShardsConfig(urls=str(shard)), shards, "train").counts == (1,)


def test_positions_hold_every_sample_once_and_each_shard_from_its_front():
    shards = Shards(tuple("abcdefg"), (4, 0, 9, 1, 5, 6, 2))
    for numbers in ((), (0, 1), (0, 2), (1, 1)):
        found = positions(shards, 3, *numbers)
        for shard, count in enumerate(shards.counts):
            of_shard = found.shards == shard
            assert found.ranks[of_shard].tolist() == list(range(count))
            assert len(set(found.lanes[of_shard])) <= 1
    assert np.array_equal(positions(shards, 3, 0, 1).shards, positions(shards, 3, 0, 1).shards)
    assert not np.array_equal(positions(shards, 3, 0, 1).shards, positions(shards, 3, 0, 2).shards)


def test_shards_that_are_read_side_by_side_take_turns():
    found = positions(Shards(("a", "b"), (2, 4)), 2)
    assert found.shards.tolist() == [0, 1, 0, 1, 1, 1]
    assert positions(Shards(("a", "b"), (2, 4)), 1).shards.tolist() == [0, 0, 1, 1, 1, 1]
