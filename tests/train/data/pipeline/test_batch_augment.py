import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from halfstep.train.config.augment import AugmentConfig
from halfstep.train.data.pipeline.batch_augment import augment, cutmix, erase, mixup, normalise

CLASSES = 5


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(count=6, height=24, width=20):
    images = torch.randn(count, 3, height, width, generator=seeded(1))
    return images, torch.arange(count) % CLASSES


def run(seed=0, **fields):
    images, labels = batch()
    settings = AugmentConfig(**fields).settings()
    return augment(settings, images, labels, classes=CLASSES, generator=seeded(seed))


def test_normalised_pixels_are_torchvisions():
    mean, std = AugmentConfig().normalisation(3)
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=seeded())
    wanted = functional.normalize(images.double() / 255, list(mean), list(std))
    given = normalise(images, mean, std)
    assert given.dtype == torch.float32
    torch.testing.assert_close(given.double(), wanted, rtol=0, atol=1e-6)


def test_normalisation_keeps_the_order_of_memory():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8).to(memory_format=torch.channels_last)
    mean, std = AugmentConfig().normalisation(3)
    assert normalise(images, mean, std).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("preset", ["none", "crop-flip", "pad-flip", "randaugment"])
def test_presets_without_batch_augmentation_leave_the_batch_alone(preset):
    images, labels = batch()
    generator = seeded()
    settings = AugmentConfig(preset=preset).settings()
    given = augment(settings, images, labels, classes=CLASSES, generator=generator)
    assert given[0] is images
    assert given[1] is labels
    assert torch.equal(generator.get_state(), seeded().get_state())


@pytest.mark.parametrize("fields", [{"mixup": 0.4}, {"cutmix": 1.0}, {"preset": "mixed"}])
def test_labels_become_probabilities(fields):
    for seed in range(5):
        _, labels = run(seed, **fields)
        assert labels.shape == (6, CLASSES)
        assert labels.dtype == torch.float32
        torch.testing.assert_close(labels.sum(1), torch.ones(6))
        assert labels.min() >= 0


@pytest.mark.parametrize(
    "fields", [{"mixup": 0.4}, {"cutmix": 1.0}, {"erase": 0.5}, {"preset": "mixed"}]
)
def test_the_generator_decides_all_that_happens(fields):
    torch.manual_seed(1)
    first = run(3, **fields)
    torch.manual_seed(2)
    second = run(3, **fields)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert any(not torch.equal(first[0], run(seed, **fields)[0]) for seed in range(4, 9))


@pytest.mark.parametrize("fields", [{"mixup": 0.4}, {"cutmix": 1.0}, {"erase": 1.0}])
def test_the_given_batch_is_not_changed(fields):
    images, labels = batch()
    run(**fields)
    settings = AugmentConfig(**fields).settings()
    augment(settings, images, labels, classes=CLASSES, generator=seeded())
    assert torch.equal(images, batch()[0])
    assert torch.equal(labels, batch()[1])


def test_mixup_blends_images_and_labels_alike():
    images, labels = batch()
    chances = torch.eye(CLASSES)[labels]
    mixed, mixed_labels = mixup(images, chances, 0.3)
    for index in range(6):
        torch.testing.assert_close(mixed[index], 0.3 * images[index] + 0.7 * images[index - 1])
        torch.testing.assert_close(
            mixed_labels[index], 0.3 * chances[index] + 0.7 * chances[index - 1]
        )


def test_mixup_is_torchvisions(monkeypatch):
    images, labels = batch()
    reference = v2.MixUp(alpha=1.0, num_classes=CLASSES)
    monkeypatch.setattr(reference, "_dist", torch.distributions.Uniform(0.3, 0.3 + 1e-7))
    wanted = reference(images, labels)
    given = mixup(images, torch.eye(CLASSES)[labels], 0.3)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_cutmix_pastes_one_rectangle_and_mixes_labels_by_its_area(share, seed):
    images, labels = batch()
    chances = torch.eye(CLASSES)[labels]
    mixed, mixed_labels = cutmix(images, chances, share, seeded(seed))
    before = images.roll(1, 0)
    pasted = (mixed == before).all(1)
    assert torch.equal(mixed, torch.where(pasted[:, None], before, images))
    assert (pasted == pasted[0]).all()
    rows, columns = pasted[0].any(1), pasted[0].any(0)
    assert torch.equal(pasted[0], rows[:, None] & columns)
    assert pasted[0].sum() <= (1 - share) * 24 * 20 + 24 + 20
    kept = 1 - pasted[0].float().mean()
    torch.testing.assert_close(mixed_labels, kept * chances + (1 - kept) * chances.roll(1, 0))


def test_cutmix_covers_what_is_asked_for_where_the_rectangle_fits():
    areas = []
    for seed in range(200):
        images = torch.stack([torch.zeros(1, 40, 40), torch.ones(1, 40, 40)])
        mixed, _ = cutmix(images, torch.eye(2), 0.75, seeded(seed))
        areas.append(mixed[0].mean().item())
    assert max(areas) == pytest.approx(0.25, abs=0.02)


def test_shares_follow_the_beta_distribution():
    images = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    settings = AugmentConfig(mixup=0.5).settings()
    generator = seeded()
    shares = np.array(
        [
            augment(settings, images, torch.arange(2), classes=2, generator=generator)[1][0, 0]
            for _ in range(2000)
        ]
    )
    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2a + 1)); the sample mean's error is 0.008.
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / 8) < 0.01


def test_with_mixup_and_cutmix_each_batch_gets_one_of_them():
    images, _ = batch()
    before = images.roll(1, 0)
    pastes = 0
    for seed in range(60):
        mixed, _ = run(seed, mixup=1.0, cutmix=1.0)
        pastes += bool(((mixed == images) | (mixed == before)).all())
    assert 15 <= pastes <= 45


def test_erased_is_a_rectangle_of_zeros_of_at_most_a_third():
    images, _ = batch(200)
    erased = erase(images, 0.5, seeded())
    gone = (erased == 0).all(1)
    assert torch.equal(erased, images.masked_fill(gone[:, None], 0))
    for each in gone:
        assert torch.equal(each, each.any(1)[:, None] & each.any(0))
    shares = gone.float().mean((1, 2))
    assert 70 <= (shares > 0).sum() <= 130
    assert shares.max() < 0.4
    assert shares[shares > 0].min() < 0.08


@pytest.mark.parametrize(("probability", "erased"), [(0.0, 0), (1.0, 50)])
def test_erase_is_the_share_of_images(probability, erased):
    images, _ = batch(50)
    given = erase(images, probability, seeded())
    assert ((given == 0).flatten(1).any(1)).sum() == erased


def test_each_image_is_erased_elsewhere():
    images, _ = batch(20)
    gone = (erase(images, 1.0, seeded()) == 0).all(1)
    assert len({tuple(each.flatten().tolist()) for each in gone}) > 15


def test_a_batch_of_one_can_be_mixed():
    images, labels = torch.ones(1, 3, 8, 8), torch.tensor([2])
    settings = AugmentConfig(preset="mixed", erase=0.0).settings()
    mixed, chances = augment(settings, images, labels, classes=3, generator=seeded())
    assert torch.equal(mixed, images)
    assert chances.tolist() == [[0, 0, 1]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_changes_the_batch_alike_and_is_not_waited_for():
    images, labels = batch()
    settings = AugmentConfig(preset="mixed").settings()
    wanted = augment(settings, images, labels, classes=CLASSES, generator=seeded())
    on_gpu = images.cuda(), labels.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        given = augment(settings, *on_gpu, classes=CLASSES, generator=seeded())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other)
