import torch

from halfstep.train.run.progress import Progress, Score


def test_state_comes_back_through_a_checkpoint_but_for_how_the_run_stands(tmp_path):
    before = Progress(epochs=3, batch=7, best=Score(0.5, 0.75, 2), rollbacks=1, pieces=2)
    before.stop("nonfinite", "the loss\nwas inf")
    assert before.error == "the loss was inf"
    torch.save(before.state_dict(), tmp_path / "state.pt")
    after = Progress()
    after.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (after.status, after.error) == ("finished", None)
    before.status, before.error = "finished", None
    assert after == before
    assert after.epoch == 4
