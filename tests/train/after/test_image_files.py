import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from halfstep.errors import UserError
from halfstep.feed.decode import read_image
from halfstep.train.after import image_files
from halfstep.train.after.trained import open_run
from halfstep.train.config.data import ImportConfig
from halfstep.train.data.pipeline import transforms
from halfstep.train.data.sources.csv_rows import columns_of
from halfstep.train.data.sources.faults import DataWarning


@pytest.fixture
def folder(tmp_path):
    """Three images, two of them in folders, beside something else."""
    for index, name in enumerate(("b.png", "a/c.JPG", "a/d/e.bmp")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 14), (index * 80, 120, 200)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def names(listed):
    return [each.name for each in listed]


def test_a_csv_has_the_columns_that_are_named(folder):
    (folder / "named.csv").write_text("file\tkind\nb.png\toak\n")
    (found,) = image_files.of_csv(
        folder / "named.csv", None, columns_of("image=file,label=kind"), labelled=True
    )
    assert (found.file, found.label) == (folder / "b.png", "oak")


def test_folder_gives_all_images_in_it_by_name(folder):
    wanted = [str(folder / name) for name in ("a/c.JPG", "a/d/e.bmp", "b.png")]
    assert names(image_files.find([folder])) == wanted


def test_hidden_files_and_other_formats_are_left_out_and_counted(folder):
    for name in ("a/._c.JPG", ".ipynb_checkpoints/b.png", "a/x.heic", "a/y.gif"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = names(image_files.find([folder]))
    # A GIF is read here, where no training set is made of it.
    assert found == [str(folder / name) for name in ("a/c.JPG", "a/d/e.bmp", "a/y.gif", "b.png")]
    assert [str(each.message).removeprefix(f"{folder}: ") for each in said] == [
        "1 file of a format that is not read: .heic 1; convert to PNG or JPEG",
        "2 hidden files and folders ignored: ._* 1, .ipynb_checkpoints 1",
    ]


def test_images_of_a_csv_file_are_found_under_another_spelling(folder):
    if (folder / "B.png").exists():
        pytest.skip("this file system does not tell the spellings apart")
    (folder / "list.csv").write_text("image\nB.png\n")
    with pytest.warns(DataWarning, match=r"row 2 \('B.png', on disk 'b.png'\)"):
        (found,) = image_files.find([folder / "list.csv"])
    assert (found.name, found.file) == ("B.png", folder / "b.png")


def test_images_and_folders_come_in_the_order_given(folder):
    found = image_files.find([folder / "b.png", folder / "a"])
    assert names(found) == [str(folder / name) for name in ("b.png", "a/c.JPG", "a/d/e.bmp")]


def test_paths_of_a_csv_file_start_from_its_folder_or_the_root(folder, tmp_path):
    (folder / "a" / "list.csv").write_text("image\nc.JPG\nd/e.bmp\n")
    found = image_files.find([folder / "a" / "list.csv"])
    assert names(found) == ["c.JPG", "d/e.bmp"]
    assert found[0].file == folder / "a" / "c.JPG"
    found = image_files.find([folder / "a" / "list.csv"], root=Path("/elsewhere"))
    assert found[1].file == Path("/elsewhere/d/e.bmp")


def test_labels_of_a_csv_file_are_read_where_they_are_asked_for(folder):
    (folder / "list.csv").write_text("image,label\nb.png,blue\n")
    (found,) = image_files.of_csv(folder / "list.csv", None, labelled=True)
    assert (found.label, found.where) == ("blue", f"{folder / 'list.csv'}, row 2: b.png")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.png", "does not exist; write images, folders, or a CSV"),
        ("a/f", "no image found in"),
    ],
)
def test_nothing_to_read_is_one_line(folder, name, said):
    (folder / "a" / "f").mkdir()
    with pytest.raises(UserError, match=said):
        image_files.find([folder / name])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_the_pixels_of_validation_and_name_what_cannot_be_read(
    folder, pictures_run, workers, monkeypatch
):
    (folder / "a" / "b.png").write_bytes(b"no image")
    listed = [*image_files.find([folder]), image_files.Listed("x", folder / "x.png", where="X")]
    trained = open_run(pictures_run)
    data = trained.config.data.model_copy(update={"workers": workers})
    config = trained.config.model_copy(update={"data": data, "batch_size": 2})
    object.__setattr__(trained, "config", config)
    found = list(image_files.batches(trained, listed))
    readable = ["a/c.JPG", "a/d/e.bmp", "b.png"]
    transform = transforms.build(data.augment, trained.image_shape[1], train=False)
    wanted = torch.stack([transform(read_image(folder / file)) for file in readable])
    assert torch.equal(torch.cat([batch.images for batch in found]), wanted)
    assert [each.name for batch in found for each in batch.listed] == [
        str(folder / file) for file in readable
    ]
    broken, missing = (line for batch in found for line in batch.faults)
    assert "a/b.png is not an image" in broken
    assert missing == "X cannot be read: No such file or directory"


def test_images_for_a_grey_model_are_grey(folder, finished_run):
    (batch,) = image_files.batches(open_run(finished_run), image_files.find([folder]))
    assert batch.images.shape == (3, 1, 8, 8)
    assert batch.images.dtype == torch.uint8


@pytest.mark.parametrize(("said", "warns"), [({}, 1), ({"mean": [0.0], "std": [1.0]}, 0)])
def test_what_a_data_set_of_ones_own_did_to_its_pixels_is_asked_for(folder, said, warns):
    made = {"target": "my_data:Scans"}
    data = ImportConfig(name="import", train=made, val=made, augment=said, workers=0)
    trained = SimpleNamespace(
        config=SimpleNamespace(data=data, batch_size=2),
        image_shape=(1, 8, 8),
        normalisation=((0.0,), (1.0,)),
    )
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", DataWarning)
        (*_, last) = image_files.batches(trained, image_files.find([folder]))
    assert last.images.shape == (1, 1, 8, 8)
    told = [each for each in heard if each.category is DataWarning]
    assert ["my_data:Scans returned float32" in str(each.message) for each in told] == [
        True
    ] * warns
