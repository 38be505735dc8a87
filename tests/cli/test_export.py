import pytest
from safetensors import safe_open

RUN = "runs/digits/fp32-seed0"


def test_weights_are_written_into_the_run_directory(halfstep, run, tmp_path):
    code, out, _ = halfstep("export", RUN)
    assert code == 0
    assert out == f"{RUN}/export/best.safetensors (best, epoch 1)\n"
    with safe_open(tmp_path / RUN / "export" / "best.safetensors", "pt") as file:
        assert "fc.weight" in file.keys()  # noqa: SIM118  (it is no mapping)


def test_program_is_written_where_it_is_asked_for(halfstep, run, tmp_path):
    code, out, err = halfstep(
        "export", RUN, "--format", "torch", "--checkpoint", "last", "--out", "x/model.pt2"
    )
    assert (code, err) == (0, "")
    assert out.startswith(
        "x/model.pt2 (last, epoch 1); its logits differ from the model's by at most "
    )
    assert (tmp_path / "x" / "model.pt2").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "'nowhere' is not a run directory"),
        ([RUN, "--format", "keras"], "Invalid value for '--format'"),
        ([RUN, "--out", "runs/digits"], "cannot write 'runs/digits'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(halfstep, run, arguments, said):
    code, _, err = halfstep("export", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
