import csv
import io

import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional

from halfstep.errors import UserError
from halfstep.feed.decode import read_image
from halfstep.train.after.predict import predict
from halfstep.train.after.run_config import config_of
from halfstep.train.after.trained import open_run
from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train


@pytest.fixture(scope="module")
def scans(finished_run, tmp_path_factory):
    """The validation split of a run over digits as PNG files, and what the run says of them."""
    folder = tmp_path_factory.mktemp("scans")
    setup = set_up(
        config_of(finished_run), torch.device("cpu"), weights=open_run(finished_run).stored.weights
    )
    (mean,), (std,) = setup.task.data.normalisation
    images = torch.cat([images for images, _ in setup.task.data.val.epoch()])
    with setup.engine as engine, engine.evaluating():
        said = engine.model(images).argmax(1).tolist()
    for index, image in enumerate(images):
        levels = ((image[0] * std + mean) * 255).round().to(torch.uint8)
        Image.fromarray(levels.numpy()).save(folder / f"{index:03d}.png")
    return folder, [str(each) for each in said]


def test_predictions_are_those_of_the_runs_validation(finished_run, scans):
    folder, said = scans
    found = predict([finished_run], [folder])
    files, labels = zip(*found.labels, strict=True)
    assert list(files) == [str(file) for file in sorted(folder.iterdir())]
    # 8 bits cannot hold sixteenths exactly, which may tip a prediction that was a toss-up.
    differ = sum(ours != theirs for ours, theirs in zip(labels, said, strict=True))
    assert differ <= len(said) / 100
    assert len(set(said)) > 1
    assert not found.unreadable


def test_submission_has_the_images_of_the_csv_file_as_they_stand_there(
    finished_run, scans, tmp_path
):
    folder, said = scans
    wanted = ["003.png", "000.png", "001.png"]
    (tmp_path / "test.csv").write_text("id,image\n" + "".join(f"7,{name}\n" for name in wanted))
    text = predict([finished_run], [tmp_path / "test.csv"], root=folder).csv()
    assert text.splitlines()[0] == "image,label"
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["image"] for row in rows] == wanted
    assert [row["label"] for row in rows] == [said[int(name[:3])] for name in wanted]


def test_image_that_cannot_be_read_is_named_and_has_no_line(finished_run, scans, tmp_path):
    folder, _ = scans
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    found = predict([finished_run], [tmp_path / "broken.png", folder / "000.png"])
    assert [name for name, _ in found.labels] == [str(folder / "000.png")]
    (line,) = found.unreadable
    assert str(tmp_path / "broken.png") in line
    nothing = predict([finished_run], [tmp_path / "broken.png"])
    assert nothing.csv() == "image,label\n"


def test_probabilities_are_the_softmax_of_the_runs_logits(finished_run, scans):
    folder, _ = scans
    files = sorted(folder.iterdir())[:8]
    found = predict([finished_run], files, top=3)
    trained = open_run(finished_run)
    # Files are read as RGB, and their grey differs from the file's by a rounding.
    images = [functional.rgb_to_grayscale(read_image(file)) for file in files]
    with trained.classifier(torch.device("cpu")) as classify, torch.no_grad():
        wanted = torch.softmax(classify(torch.stack(images)), 1)
    assert torch.allclose(torch.tensor(found.probabilities), wanted, atol=1e-5)

    whole = list(csv.DictReader(io.StringIO(found.csv(probabilities=True))))
    assert list(whole[0]) == ["image", "label", *(f"probability_{each}" for each in range(10))]
    for row, known in zip(whole, wanted, strict=True):
        columns = [float(row[f"probability_{each}"]) for each in range(10)]
        assert columns == pytest.approx(known.tolist(), abs=2e-5)
        assert row["label"] == str(known.argmax().item())

    best = list(csv.DictReader(io.StringIO(found.csv(top=3))))
    pairs = [("label", "probability"), ("label_2", "probability_2"), ("label_3", "probability_3")]
    assert list(best[0]) == ["image", *(name for pair in pairs for name in pair)]
    for row, known in zip(best, wanted, strict=True):
        values, places = known.topk(3)
        assert [int(row[label]) for label, _ in pairs] == places.tolist()
        shares = [float(row[share]) for _, share in pairs]
        assert shares == pytest.approx(values.tolist(), abs=2e-5)


def test_more_classes_than_there_are_cannot_be_asked_for(finished_run, scans):
    folder, _ = scans
    with pytest.raises(UserError, match="--top-k is 11, but the run has 10 classes; write --top-k"):
        predict([finished_run], [folder / "000.png"], top=11)


def test_names_with_commas_are_quoted(pictures_run, tmp_path):
    Image.new("RGB", (12, 12), (60, 60, 60)).save(tmp_path / 'a,"b".png')
    text = predict([pictures_run], [tmp_path]).csv()
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["image"] == str(tmp_path / 'a,"b".png')
    assert row["label"] in {"dark", "light"}


def test_ensemble_and_mirror_images_are_averaged(finished_run, pictures_run, tiny, scans, tmp_path):
    files = sorted(scans[0].iterdir())[:8]
    other = tmp_path / "other"
    train(tiny("epochs=1", seed=1), other, quiet=True)
    alone = [torch.tensor(predict([run], files).probabilities) for run in (finished_run, other)]
    found = predict([finished_run, other], files)
    mean = (alone[0] + alone[1]) / 2
    assert torch.allclose(torch.tensor(found.probabilities), mean)
    assert [label for _, label in found.labels] == [str(each) for each in mean.argmax(1).tolist()]
    for file in files:
        ImageOps.mirror(Image.open(file)).save(tmp_path / file.name)
    mirrored = predict([other], [tmp_path / file.name for file in files])
    both = (alone[1] + torch.tensor(mirrored.probabilities)) / 2
    assert not torch.allclose(alone[1], both, atol=1e-3)
    assert torch.allclose(torch.tensor(predict([other], files, flip=True).probabilities), both)
    with pytest.raises(UserError, match="has other classes than"):
        predict([finished_run, pictures_run], files)
