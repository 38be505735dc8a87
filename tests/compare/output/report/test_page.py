"""What the report says, without a browser: sources, marks, and that nothing is fetched."""

import html.parser
import json
import re

import pytest

from halfstep.compare.cells.directory import prepare
from halfstep.compare.cells.results import Result
from halfstep.compare.output.notes import notes
from halfstep.compare.output.records import flat_records
from halfstep.compare.output.report.page import page


@pytest.fixture
def text(report):
    return report.read_text()


class Numbers(html.parser.HTMLParser):
    """Collects the table cells with a number, and whether anything in them names its source."""

    def __init__(self):
        super().__init__()
        self.found = []
        self._open = None

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "td" and given.get("data-label") not in ("status", "seed"):
            self._open = {"text": "", "source": None}
        elif self._open is not None and "data-source" in given:
            self._open["source"] = given["data-source"]

    def handle_data(self, data):
        if self._open is not None:
            self._open["text"] += data

    def handle_endtag(self, tag):
        if tag == "td" and self._open is not None:
            self.found.append(self._open)
            self._open = None


def test_every_number_names_files_that_exist_and_keys_in_them(report, text):
    parser = Numbers()
    parser.feed(text)
    overrides = {"256", "1024", "0.1", "0.4"}
    numbers = [each for each in parser.found if each["text"].strip() not in {"-", *overrides}]
    assert len(numbers) > 100
    for number in numbers:
        assert number["source"], number
        for source in number["source"].split():
            file, _, key = source.partition("#")
            found = json.loads((report.parent / file).read_text())
            for part in key.split("."):
                found = found[part]
            assert isinstance(found, int | float), source


def test_nothing_is_fetched_from_anywhere(text):
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_rehearsed_and_unfinished_rows_are_marked(text):
    assert 'title="autocast bf16: rehearsed (no bf16 units)">†' in text
    assert "<option>nonfinite</option>" in text
    assert "is-nonfinite" in text
    assert "killed by SIGSEGV" in text


def test_where_memory_goes_is_shown_as_far_as_runs_say(text):
    assert re.search(r'class="part parameters" style="width: [\d.]+%"', text)
    assert "parameters 50 MiB" in text
    assert 'class="part compressed" style="width: ' in text
    assert '<i class="key compressed"></i>compressed activations 30 MiB' in text
    assert re.search(r'<i class="key"></i>other \d+ MiB', text)
    assert "contains temporary tensors and the working memory of the operators" in text


def test_the_formats_that_were_observed_are_shown_with_their_exceptions(text):
    assert 'summary.json#formats">97.00 % fp16</span>' in text
    assert "<code>head.norm</code> fp32: the recipe keeps the layer in fp32" in text


def test_what_a_run_says_cannot_break_out_of_the_page(make_grid):
    grid = make_grid(("fp32",), points=(("name=</script><img src=x>",),))
    text = page(grid, [Result(grid.cells[0], "crashed", "</script><script>alert(1)</script>")])
    assert "<img" not in text
    assert "alert(1)</script>" not in text
    assert text.count("</script>") == 2


def test_a_comparison_without_any_result_is_a_page_too(make_grid):
    grid = make_grid()
    text = page(grid, [Result(cell, "pending") for cell in grid.cells])
    assert "0 of 3 runs have a result" in text


def test_the_data_of_the_script_hold_the_curves_of_every_run(report, text):
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert len(data["cells"]) == 24
    curve = data["cells"][0]["curves"]["train_loss"]
    logged = (report.parent / data["cells"][0]["source"]).read_text().splitlines()
    first = json.loads(logged[0])
    assert curve["x"][0] == first["step"]
    assert curve["y"][0] == pytest.approx(first["loss"], rel=1e-5)


def test_one_seed_says_that_it_gives_no_interval(make_grid, fill):
    grid = make_grid(("fp32", "fp16"))
    text = page(grid, fill(grid))
    assert text.count("One seed cannot tell") == 1
    assert "before you decide" not in text


def test_a_step_that_was_not_finite_links_to_its_explanation_and_says_it_inline(make_grid, fill):
    grid = make_grid(("fp32", "o3"))
    for cell in grid.cells:
        prepare(cell)
        cell.run_directory.mkdir(exist_ok=True)
    broken = next(cell for cell in grid.cells if cell.recipe == "o3")
    record = {
        "diagnosis": {"verdicts": [{"code": "EPS", "finding": {"summary": "eps is <zero>"}}]},
        "evidence": {},
    }
    (broken.run_directory / "diagnosis.json").write_text(json.dumps(record))
    results = fill(grid)
    cause = {result.cell.recipe: result.cause for result in results}
    assert cause == {"fp32": None, "o3": "EPS: eps is <zero>"}
    text = page(grid, results)
    link = f'<a href="{broken.directory.name}/run/diagnosis.txt">12</a>'
    assert text.count(link) == 2  # in the row of the recipe, and in that of its run
    assert "the loss was nan at step 12; doctor found EPS: eps is &lt;zero&gt;" in text
    assert [each["cause"] for each in flat_records(grid, results)] == list(cause.values())
    assert any("EPS: eps is <zero>" in note for note in notes(grid, results))


def test_a_row_far_from_its_baseline_leaves_room_for_the_others(make_grid):
    grid = make_grid(("fp32", "fp16", "o3"), (0, 1, 2))

    def drawn(**accuracies):
        results = [
            Result(cell, "finished", summary={"best_accuracy": accuracies[cell.recipe]})
            for cell in grid.cells
        ]
        text = page(grid, results)
        places = [float(x) for x in re.findall(r'class="mean" cx="([-\d.]+)"', text)]
        return float(re.search(r"scale, from .([\d.]+) to", text)[1]), places

    assert drawn(fp32=0.9, fp16=0.91, o3=0.5) == (1.0, [pytest.approx(100), -105])
    assert drawn(fp32=0.9, fp16=0.7, o3=0.5) == (40.0, [pytest.approx(-50), pytest.approx(-100)])


def test_the_lines_of_a_plot_are_named_as_they_are_drawn(text):
    assert "the solid line is no difference, and the dotted line is the margin" in text
    assert "dasharray" not in re.search(r"\.forest \.zero \{.*?\}", text)[0]
    assert "dasharray" in re.search(r"\.forest \.margin \{.*?\}", text)[0]


def test_a_filter_is_as_wide_as_its_example(text):
    found = re.findall(r'placeholder="([^"]*)" size="(\d+)"', text)
    assert found
    assert all(int(size) > len(example) for example, size in found)
