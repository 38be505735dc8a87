"""The configs of docs/optimizer-state.md are ones that halfstep takes."""

import re
from pathlib import Path

from halfstep.train.config.files import load

PAGE = (Path(__file__).parents[2] / "docs" / "optimizer-state.md").read_text()


def test_every_example_is_an_optimizer():
    examples = re.findall(r"```yaml\noptimizer: (\{.*?\})", PAGE)
    names = [load("digits", [f"optimizer={each}"]).optimizer.name for each in examples]
    assert names == ["adamw", "adamw8bit", "bnbadamw8bit"]
    for name in re.findall(r"`(adamw?(?:\dbit|fp8))`", PAGE):
        assert load("digits", [f"optimizer={{name: {name}}}"]).optimizer.name == name
