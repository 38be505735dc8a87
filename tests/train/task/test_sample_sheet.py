import pytest
import torch

from halfstep.train.task.sample_sheet import draw


def sheet(images, labels, predictions, normalisation=((0.5,), (0.25,))):
    return draw(
        images,
        torch.tensor(labels),
        torch.tensor(predictions),
        classes=("cat", "ключ", "a name longer than the picture is wide"),
        normalisation=normalisation,
    )


def tints(picture):
    """Return whether any pixel is clearly green, and any clearly red."""
    red, green, _ = picture.int()
    return bool((green > red + 60).any()), bool((red > green + 60).any())


def test_pixels_are_those_before_normalisation():
    picture = sheet(torch.full((1, 1, 8, 8), 1.0), [0], [0])
    assert picture.dtype == torch.uint8
    assert picture[:, 48, 48].tolist() == [191] * 3  # (1 * 0.25 + 0.5) * 255
    colour = torch.zeros(1, 3, 8, 8)
    picture = sheet(colour, [0], [0], ((0.0, 0.5, 1.0), (1.0, 1.0, 1.0)))
    assert picture[:, 48, 48].tolist() == [0, 128, 255]


def test_right_predictions_are_green_and_wrong_ones_red():
    blank = torch.full((1, 1, 8, 8), -2.0)
    assert tints(sheet(blank, [0], [0])) == (True, False)
    assert tints(sheet(blank, [0], [2])) == (False, True)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_of_any_depth_and_names_of_any_script_can_be_shown(channels):
    ones = (1.0,) * channels
    picture = sheet(torch.rand(8, channels, 5, 7), [0, 1, 2, 0] * 2, [1] * 8, (ones, ones))
    assert picture.shape[0] == 3
    assert picture.shape[2] > 4 * 96
    assert picture.shape[1] > 2 * 96
