import json

from halfstep.train.config_files import load, shipped


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
