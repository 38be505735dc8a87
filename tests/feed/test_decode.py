"""Against Pillow, an independent reader of the same files."""

import importlib.util
import io
import os
import sys
from threading import Thread

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageOps

from halfstep.errors import UserError
from halfstep.feed import decode
from halfstep.feed.decode import read_image
from halfstep.feed.pixels import CorruptImage

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and:DeprecationWarning")


def picture(width=80, height=60):
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, format_, **options):
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the camera was turned to the left
    return exif


FILES = {
    "jpeg": encoded(picture(), "JPEG"),
    "progressive jpeg": encoded(picture(), "JPEG", progressive=True),
    "grey jpeg": encoded(picture().convert("L"), "JPEG"),
    "cmyk jpeg": encoded(picture().convert("CMYK"), "JPEG"),
    "turned jpeg": encoded(picture(), "JPEG", exif=turned()),
    "png": encoded(picture(), "PNG"),
    "palette png": encoded(picture().convert("P"), "PNG"),
    "transparent png": encoded(picture().convert("RGBA"), "PNG"),
    "grey png": encoded(picture().convert("LA"), "PNG"),
    "black and white png": encoded(picture().convert("1"), "PNG"),
    "turned png": encoded(picture(), "PNG", exif=turned()),
    "webp": encoded(picture(), "WEBP"),
    "turned webp": encoded(picture(), "WEBP", exif=turned()),
    "gif": encoded(picture(), "GIF"),
    "bmp": encoded(picture(), "BMP"),
    "tiff": encoded(picture(), "TIFF"),
}


def with_pillow(content):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_file_gives_upright_rgb_pixels(kind):
    image = read_image(FILES[kind])
    assert image.dtype == torch.uint8
    assert image.shape == ((3, 80, 60) if "turned" in kind else (3, 60, 80))
    # Two builds of libjpeg may round differently by one level.
    assert (image.int() - with_pillow(FILES[kind]).int()).abs().max() <= 1


@pytest.mark.parametrize("kind", ["jpeg", "grey jpeg", "png", "palette png"])
def test_pixels_are_torchvisions_to_the_bit(kind):
    content = torch.frombuffer(bytearray(FILES[kind]), dtype=torch.uint8)
    assert torch.equal(read_image(FILES[kind]), torchvision.io.decode_image(content, mode="RGB"))


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_jpeg_and_png_do_not_pass_through_pillow(kind, monkeypatch):
    pytest.importorskip("torchcodec")
    monkeypatch.setattr(decode, "_decode_with_pillow", None)
    assert read_image(FILES[kind]).shape == (3, 60, 80)


@pytest.mark.parametrize("format_", ["PNG", "TIFF"])
def test_of_sixteen_bits_the_upper_eight_count(format_):
    grey = np.random.default_rng(0).integers(0, 65536, (6, 8), dtype=np.uint16)
    image = read_image(encoded(Image.fromarray(grey), format_))
    # Scaling 65535 to 255 rounds; shifting cuts off.
    assert (image.int() - torch.from_numpy(grey.astype(int) >> 8)).abs().max() <= 1


def test_a_path_gives_what_its_bytes_give(tmp_path):
    file = tmp_path / "leaf.jpg"
    file.write_bytes(FILES["jpeg"])
    assert torch.equal(read_image(file), read_image(FILES["jpeg"]))
    assert torch.equal(read_image(str(file)), read_image(FILES["jpeg"]))


DAMAGED = {
    "empty": b"",
    "text": b"<html>404 Not Found</html>",
    "half a jpeg": FILES["jpeg"][: len(FILES["jpeg"]) // 2],
    "half a png": FILES["png"][: len(FILES["png"]) // 2],
    "half a webp": FILES["webp"][: len(FILES["webp"]) // 2],
    "the head of a jpeg": FILES["jpeg"][:100],
    "a jpeg's magic and nothing else": FILES["jpeg"][:3],
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_an_error_of_one_line_that_names_it(kind, tmp_path):
    file = tmp_path / "leaf.jpg"
    file.write_bytes(DAMAGED[kind])
    with pytest.raises(CorruptImage) as caught:
        read_image(file)
    assert str(caught.value).startswith(str(file))
    assert "0x" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_bytes_are_called_what_the_caller_calls_them():
    with pytest.raises(CorruptImage, match=r"^train-000.tar: 17.jpg is empty"):
        read_image(b"", "train-000.tar: 17.jpg")


def test_a_missing_file_is_an_oserror_and_not_a_corrupt_image(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none.jpg")


def test_a_fifo_is_named_and_not_waited_for(tmp_path):
    fifo = tmp_path / "image.jpg"
    os.mkfifo(fifo)
    # A read would end with nothing, as this writer closes what it has opened.
    writer = Thread(target=lambda: fifo.open("wb").close(), daemon=True)
    writer.start()
    try:
        with pytest.raises(CorruptImage, match=r"image.jpg is a FIFO, not an image file; take"):
            read_image(fifo)
    finally:
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        writer.join()
        os.close(reader)


def test_a_device_is_named_and_not_read():
    with pytest.raises(CorruptImage, match=r"^/dev/null is a device"):
        read_image("/dev/null")


def test_what_torchcodec_refuses_pillow_may_read(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("too strict")

    monkeypatch.setattr(decode, "_DECODERS", dict.fromkeys(decode._DECODERS, refuse))
    assert (read_image(FILES["jpeg"]).int() - with_pillow(FILES["jpeg"]).int()).abs().max() <= 1


@pytest.mark.parametrize("kind", FILES)
def test_pillow_alone_gives_the_same_pixels(kind, monkeypatch):
    ours = read_image(FILES[kind])
    monkeypatch.setattr(decode, "_DECODERS", {})
    # Two builds of libjpeg may round differently by one level.
    assert (read_image(FILES[kind]).int() - ours.int()).abs().max() <= 1


def test_without_torchcodec_there_is_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    spec = importlib.util.spec_from_file_location("decode_elsewhere", decode.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert not elsewhere._DECODERS


@pytest.mark.parametrize("format_", ["PPM", "TIFF"])
def test_sixteen_bits_of_grey_keep_their_upper_half(format_):
    grey = np.array([[0, 0x1234, 0x8000, 0xFFFF]], np.uint16)
    image = read_image(encoded(Image.fromarray(grey), format_))
    assert image[0].tolist() == [[0, 0x12, 0x80, 0xFF]]


def test_pixels_of_no_known_range_are_refused():
    content = encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF")
    with pytest.raises(CorruptImage, match=r"has pixels of Pillow's mode 'F', whose range is not"):
        read_image(content, name="leaf.tif")
