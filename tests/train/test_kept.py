"""Many runs in one process: each is bitwise the run of a new process, and nothing is made twice."""

import pytest
import torch
from sameness import assert_same_run

from halfstep.train import kept
from halfstep.train.build import compiling, models
from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train

SEEDS = (0, 1)


@pytest.mark.parametrize("recipe", ["o2", pytest.param("fp32", marks=pytest.mark.slow)])
def test_runs_of_one_process_are_those_of_separate_ones(pictures, tmp_path, recipe):
    given = {seed: pictures("epochs=1", recipe=recipe, seed=seed) for seed in SEEDS}
    for seed, config in given.items():
        train(config, tmp_path / f"alone-{seed}", quiet=True)
    with kept.keeping():
        for seed, config in given.items():
            train(config, tmp_path / f"warm-{seed}", quiet=True)
    for seed in SEEDS:
        assert_same_run(tmp_path / f"warm-{seed}", tmp_path / f"alone-{seed}")


def test_the_model_and_the_images_stay_where_they_are(pictures):
    options = ("data.cache_images=device", "data.augment={preset: pad-flip}")
    found = []
    with kept.keeping():
        for seed in SEEDS:
            setup = set_up(pictures(*options, seed=seed), torch.device("cpu"))
            with setup.engine:
                images = next(setup.task.data.train.epoch())[0]
                places = [each.data_ptr() for each in setup.engine.bare_model.parameters()]
                held = setup.task.data.train._loader._all().images.data_ptr()
                found.append((setup.engine.bare_model, places, held, images))
    (one, places, held, first), (other, again, held_again, second) = found
    assert one is other
    assert places == again
    assert held == held_again
    assert not torch.equal(first, second)  # other seeds, other crops
    with set_up(pictures(*options), torch.device("cpu")).engine as engine:
        assert engine.bare_model is not one


def test_another_recipe_has_a_model_of_its_own_whose_memory_is_not_the_runs(pictures):
    with kept.keeping():
        mine, other = (
            set_up(pictures(recipe=recipe), torch.device("cpu")).engine
            for recipe in ("fp32", "fp16")
        )
        assert mine.bare_model is not other.bare_model
        size = sum(
            each.nbytes for each in (*mine.bare_model.parameters(), *mine.bare_model.buffers())
        )
        assert kept.bytes_of_others(other.bare_model) == size
        mine.close()
        other.close()
        kept.forget()
        assert kept.bytes_of_others(other.bare_model) == 0


@pytest.mark.parametrize("recipe", ["o2", pytest.param("fp32", marks=pytest.mark.slow)])
def test_nothing_is_compiled_twice(tiny, tmp_path, monkeypatch, recipe):
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    def with_backend(model):
        if model._compiled_call_impl is None:
            model.compile(backend=backend)
        return model

    monkeypatch.setattr(models, "compiled", with_backend)
    monkeypatch.setattr(compiling, "pays", lambda *_: True)
    torch._dynamo.reset()
    config = {
        seed: tiny("model.compile=true", "epochs=1", "probes=false", recipe=recipe, seed=seed)
        for seed in SEEDS
    }
    counts = []
    with kept.keeping():
        for seed in SEEDS:
            train(config[seed], tmp_path / f"warm-{seed}", quiet=True)
            counts.append(len(compiled))
    torch._dynamo.reset()
    assert counts[0] > 0
    assert counts == [counts[0]] * len(SEEDS)
