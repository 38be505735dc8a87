"""Images as arrays, without torch: the pixels are those of the tensors."""

import os
import subprocess
import sys

import numpy as np
import pytest
from test_decode import FILES

from halfstep.feed import decode, pixels
from halfstep.feed.pixels import CorruptImage


@pytest.mark.parametrize("kind", FILES)
def test_pixels_are_those_of_the_tensor(kind, tmp_path):
    file = tmp_path / "leaf"
    file.write_bytes(FILES[kind])
    image = pixels.read(file)
    assert (image.dtype, image.shape[2], image.flags.c_contiguous) == (np.uint8, 3, True)
    tensor = decode.read_image(file).permute(1, 2, 0).numpy()
    # Two builds of libjpeg may round differently by one level.
    assert np.abs(image.astype(int) - tensor).max() <= 1


def test_what_is_no_image_is_refused_in_the_same_words(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("no image")
    os.mkfifo(tmp_path / "fifo")
    for file in tmp_path.iterdir():
        with pytest.raises(CorruptImage) as ours:
            pixels.read(file)
        with pytest.raises(CorruptImage) as theirs:
            decode.read_image(file)
        assert str(ours.value) == str(theirs.value)
        assert str(ours.value).startswith(str(file))


def test_images_are_compared_and_split_without_torch():
    program = "import sys, halfstep.feed.pixels, halfstep.train.data.audit.folds\n"
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
