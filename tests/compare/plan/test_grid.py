from halfstep.compare.plan.grid import Arm, changes


def test_cells_run_all_recipes_of_one_seed_before_the_next(make_grid):
    cells = make_grid(("fp32", "fp16"), (4, 5)).cells
    assert [cell.label for cell in cells] == [
        "fp32 seed 4",
        "fp16 seed 4",
        "fp32 seed 5",
        "fp16 seed 5",
    ]
    assert [cell.directory.name for cell in cells][:2] == ["fp32-seed4", "fp16-seed4"]


def test_fingerprint_changes_with_every_setting_and_with_nothing_else(make_grid):
    first, again, other = make_grid(), make_grid(), make_grid(lr=0.2)
    assert [cell.fingerprint for cell in first.cells] == [cell.fingerprint for cell in again.cells]
    fingerprints = {cell.fingerprint for cell in (*first.cells, *other.cells)}
    assert len(fingerprints) == 6


def test_changes_name_keys_with_their_section():
    before = {"optimizer": {"lr": 0.1, "name": "sgd"}, "epochs": 3}
    now = {"optimizer": {"lr": 0.2, "name": "sgd"}, "epochs": 3, "device": "cpu"}
    assert changes(before, now) == ['device: not set -> "cpu"', "optimizer.lr: 0.1 -> 0.2"]


def test_a_grid_runs_every_recipe_at_every_point_and_compares_within_a_point(make_grid):
    points = (("batch_size=32", "lr=0.1"), ("batch_size=64", "lr=0.1"))
    grid = make_grid(("fp32", "fp16"), (0, 1), points=points)
    assert grid.axes == ("batch_size", "lr")
    assert [cell.label for cell in grid.cells][:4] == [
        "fp32 batch_size=32 lr=0.1 seed 0",
        "fp16 batch_size=32 lr=0.1 seed 0",
        "fp32 batch_size=64 lr=0.1 seed 0",
        "fp16 batch_size=64 lr=0.1 seed 0",
    ]
    assert grid.baseline(Arm("fp16", points[1])) == Arm("fp32", points[1])
    assert len({cell.fingerprint for cell in grid.cells}) == 8
    assert len({cell.directory for cell in grid.cells}) == 8


def test_one_recipe_is_compared_with_itself_at_the_first_point(make_grid):
    points = (("batch_size=32",), ("batch_size=64",))
    grid = make_grid(("fp32",), points=points)
    assert grid.baseline(Arm("fp32", points[1])) == Arm("fp32", points[0])


def test_folders_of_strange_values_are_plain_and_differ(make_grid):
    points = tuple((f"model.args={{a: '{text}'}}",) for text in ("x/y", "x:y", "../z" * 60))
    names = [cell.directory.name for cell in make_grid(("fp32",), points=points).cells]
    assert len(set(names)) == 3
    for name in names:
        assert "/" not in name
        assert len(name) < 140
    (plain,) = make_grid(("fp32+tf32",), points=(("optimizer.lr=0.1",),)).cells
    assert plain.directory.name == "fp32+tf32-optimizer.lr=0.1-seed0"
