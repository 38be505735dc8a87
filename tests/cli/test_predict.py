import csv

import pytest
from PIL import Image

RUN = "runs/digits/fp32-seed0"


@pytest.fixture
def files(run, tmp_path):
    """A run, two images, a file that is none, and a CSV file of the images."""
    for name, shade in (("a.png", 0), ("b.png", 200)):
        Image.new("L", (8, 8), shade).save(tmp_path / name)
    (tmp_path / "broken.png").write_text("no image")
    (tmp_path / "test.csv").write_text("image\nb.png\na.png\n")


def test_submission_file_has_a_line_for_each_image(halfstep, files, tmp_path):
    code, out, err = halfstep("predict", RUN, "test.csv", "--csv", "out.csv")
    assert (code, err) == (0, "")
    assert out == "2 images classified: out.csv\n"
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == ["b.png", "a.png"]
    assert {row["label"] for row in rows} <= {str(digit) for digit in range(10)}


def test_lines_go_to_the_terminal_without_a_file(halfstep, files):
    code, out, _ = halfstep("predict", RUN, "a.png", "b.png", "--checkpoint", "last")
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()] == ["image", "a.png", "b.png"]


def test_image_that_cannot_be_read_is_named_and_exits_with_1(halfstep, files):
    code, out, err = halfstep("predict", RUN, "a.png", "broken.png")
    assert code == 1
    assert len(out.splitlines()) == 2
    assert err.startswith("left out: broken.png is not an image")
    assert err.count("\n") == 1


def test_probabilities_follow_the_label(halfstep, files):
    _, out, _ = halfstep("predict", RUN, "a.png", "--probabilities")
    assert out.splitlines()[0].startswith("image,label,probability_0,probability_1,")
    _, out, _ = halfstep("predict", RUN, "a.png", "--top-k", "2")
    assert out.splitlines()[0] == "image,label,probability,label_2,probability_2"
    assert len(out.splitlines()[1].split(",")) == 5


def test_runs_and_mirror_images_are_averaged(halfstep, files):
    arguments = ("predict", RUN, "a.png", "--probabilities")
    _, alone, _ = halfstep(*arguments)
    assert halfstep(*arguments, "--ensemble", RUN)[1] == alone
    # The images are of one shade, so that nothing is mirrored.
    code, flipped, _ = halfstep(*arguments, "--flip")
    assert (code, flipped) == (0, alone)
    code, _, err = halfstep(*arguments, "--ensemble", "nowhere")
    assert (code, err.count("\n")) == (2, 1)
    assert "'nowhere' is not a run directory" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([RUN, "a.png", "--probabilities", "--top-k", "2"], "are both given; write one of them"),
        (["nowhere", "a.png"], "'nowhere' is not a run directory"),
        ([RUN, "c.png"], "'c.png' does not exist; write images, folders, or a CSV file"),
        ([RUN], "Missing argument 'IMAGES'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(halfstep, files, arguments, said):
    code, _, err = halfstep("predict", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
