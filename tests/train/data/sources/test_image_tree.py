"""The images are those of torchvision's ImageFolder, which knows no hidden files."""

from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from halfstep.train.data.sources import image_tree
from halfstep.train.data.sources.image_tree import LeftOut

IMAGES = ["cat/10.png", "cat/9.JPG", "cat/a/2.jpeg", "cat/B/1.tiff", "dog/x.webp", "dog/y.jpg.png"]
HIDDEN = {
    "a hidden folder": [".ipynb_checkpoints/0-checkpoint.png"],
    "a hidden folder in a class": ["cat/.ipynb_checkpoints/9-checkpoint.jpg"],
    "attributes of a file on macOS": ["cat/._9.JPG", "dog/._x.webp"],
    "an archive of macOS": ["__MACOSX/cat/9.JPG"],
    "the database of a file manager": ["dog/.DS_Store", "dog/Thumbs.db", "cat/desktop.ini"],
    "thumbnails of a file server": ["dog/@eaDir/x.webp/thumb.jpg"],
    "files beside the classes": [".DS_Store", "thumbs.db"],
}
NUMBER = [1, 1, 2, 1, 3, 1, 2]


def touch(root, names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.fixture
def tree(tmp_path):
    touch(tmp_path, IMAGES)
    return tmp_path


def paths(by_class):
    return [path for images in by_class.values() for path in images]


def test_images_have_the_classes_and_the_order_of_torchvision(tree, monkeypatch):
    expected = [str(Path(path).relative_to(tree)) for path, _ in ImageFolder(tree).imgs]
    assert len(expected) == len(IMAGES)
    left_out = LeftOut()
    assert paths(image_tree.by_class(tree, left_out)) == expected
    assert left_out.notices(tree) == ()
    monkeypatch.chdir(tree)
    assert paths(image_tree.by_class(Path(), left_out)) == expected


@pytest.mark.parametrize(("which", "number"), list(zip(HIDDEN, NUMBER, strict=True)))
def test_hidden_files_are_ignored_and_counted_in_one_line(tree, which, number):
    expected = image_tree.by_class(tree, LeftOut())
    touch(tree, HIDDEN[which])
    left_out = LeftOut()
    assert image_tree.by_class(tree, left_out) == expected
    (notice,) = left_out.notices(tree)
    assert notice.kind == "hidden"
    assert notice.text.startswith(f"{tree}: {number} hidden file")
    assert "\n" not in notice.text


def test_hidden_files_are_named(tree):
    touch(tree, ["cat/._1.png", "dog/._2.png", "dog/.DS_Store", "cat/.DS_Store", "cat/Thumbs.db"])
    left_out = LeftOut()
    image_tree.by_class(tree, left_out)
    (notice,) = left_out.notices(tree)
    assert notice.text.endswith(
        "5 hidden files and folders ignored: .DS_Store 2, ._* 2, Thumbs.db 1"
    )


def test_other_formats_are_named_with_their_numbers_and_texts_are_not(tree):
    touch(tree, [f"cat/{number}.GIF" for number in range(12)])
    touch(tree, ["cat/a.gif", "dog/b.heic", "dog/IMG_0001", "dog/caption.txt", "dog/labels.json"])
    left_out = LeftOut()
    assert len(paths(image_tree.by_class(tree, left_out))) == len(IMAGES)
    (notice,) = left_out.notices(tree)
    assert notice.kind == "format"
    assert notice.text == (
        f"{tree}: 15 files of formats that are not read: .gif 13, .heic 1, no ending 1; "
        "convert to PNG or JPEG"
    )


def test_no_file_is_opened_or_looked_up(tree, monkeypatch):
    touch(tree, [name for names in HIDDEN.values() for name in names] + ["cat/1.gif"])

    def refuse(*arguments, **named):
        raise AssertionError(arguments)

    for owner, name in ((Path, "stat"), (Path, "open"), (image_tree.os, "stat")):
        monkeypatch.setattr(owner, name, refuse)
    assert len(paths(image_tree.by_class(tree, LeftOut()))) == len(IMAGES)


def test_links_to_folders_are_followed_only_if_asked(tree, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    touch(elsewhere, ["1.png"])
    (tree / "cat" / "more").symlink_to(elsewhere)
    followed = image_tree.below(tree / "cat", LeftOut())
    assert str(tree / "cat" / "more" / "1.png") in followed
    assert len(image_tree.below(tree / "cat", LeftOut(), follow_links=False)) == len(followed) - 1


def test_the_formats_are_those_of_torchvision():
    assert image_tree.SUFFIXES == IMG_EXTENSIONS
