import pytest

from data.small import encoded, labels_of, load
from halfstep.errors import UserError


def open_folders(root, **fields):
    return load(**{"name": "folder", "root": str(root), **fields})


def test_folders_are_the_classes_and_files_the_images(folders):
    (folders / "train" / "cat" / "notes.txt").write_text("no image")
    (folders / "train" / "dog" / "more").mkdir()
    (folders / "train" / "dog" / "more" / "6.png").write_bytes(encoded(99))
    data = open_folders(folders)
    assert data.classes == ("cat", "dog")
    assert (data.train.images, data.val.images) == (11, 6)
    assert sorted(labels_of(data.train.epoch(1))) == [0] * 5 + [1] * 6
    assert labels_of(data.val.epoch()) == [0, 0, 0, 1, 1, 1]


def test_validation_may_lack_a_class_but_has_none_of_its_own(folders):
    (folders / "val" / "cat").rename(folders / "val" / "dgo")
    with pytest.raises(
        UserError, match=r"val/dgo is a class that .*train has no folder for.*'dog'"
    ):
        open_folders(folders)
    (folders / "val" / "dgo").rename(folders / "elsewhere")
    assert set(labels_of(open_folders(folders).val.epoch())) == {1}


def test_splits_may_have_other_names(folders):
    (folders / "val").rename(folders / "test")
    with pytest.raises(UserError, match=r"data.val.folder is 'val', which .* it has test, train"):
        open_folders(folders)
    assert open_folders(folders, val={"folder": "test"}).val.images == 6


def test_limit_keeps_all_classes(folders):
    data = open_folders(folders, train={"folder": "train", "limit": 4})
    assert sorted(labels_of(data.train.epoch(1))) == [0, 0, 1, 1]


def test_what_is_missing_is_named(folders, tmp_path_factory):
    empty = folders / "train" / "eel"
    empty.mkdir()
    with pytest.raises(UserError, match=r"train/eel holds no image; allowed: files ending in .jpg"):
        open_folders(folders)
    empty.rmdir()
    bare = tmp_path_factory.mktemp("bare")
    for split in ("train", "val"):
        (bare / split).mkdir()
    with pytest.raises(UserError, match="train has no folders"):
        open_folders(bare)
    (bare / "train" / "cat").mkdir()
    (bare / "val" / "cat").mkdir()
    with pytest.raises(UserError, match="has one folder, 'cat'"):
        open_folders(bare)
