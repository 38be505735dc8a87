import json

from halfstep.train.config.files import load, shipped


def test_table_has_one_line_for_each_shipped_config(halfstep):
    code, out, _ = halfstep("configs")
    assert code == 0
    for line, name in zip(out.splitlines(), shipped(), strict=True):
        assert line.split()[0] == name
        assert line.endswith(load(name).description)


def test_json_has_name_description_and_file(halfstep):
    code, out, _ = halfstep("configs", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["digits"]["description"] == load("digits").description
    assert rows["digits"]["file"] == str(shipped()["digits"])


def test_config_is_shown_in_full_and_is_a_config(halfstep, tmp_path):
    code, out, _ = halfstep("config", "show", "digits", "--options", "fp16=True", "epochs=3")
    assert code == 0
    assert "# Number of passes over the training images.\nepochs: 3\n" in out
    (tmp_path / "shown.yaml").write_text(out)
    assert load(str(tmp_path / "shown.yaml")) == load("digits", ["fp16=True", "epochs=3"])


def test_unknown_config_is_refused_in_one_line(halfstep):
    code, _, err = halfstep("config", "show", "digit")
    assert code == 2
    assert "did you mean 'digits'" in err
    assert err.count("\n") == 1


def test_schema_is_json_that_editors_read(halfstep):
    code, out, _ = halfstep("config", "schema")
    assert code == 0
    described = json.loads(out)["properties"]["epochs"]["description"]
    assert described.startswith("Number of passes over")
