"""Joins the results of the items `operators-N` into the file of a GPU that halfstep ships.

python benchmarks/operator_file.py h200    # reads results/gpu/items/operators-*.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from halfstep.advise.predict import measured
from halfstep.advise.predict.gpus import gpu
from halfstep.files import json_text, write_atomically

ITEMS = Path(__file__).resolve().parent / "results" / "gpu" / "items"


def joined(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return one document of measured operators from those of the items.

    Args:
        documents: The documents of the items, all of the same device and software.
        name: The GPU's name in the table.
    """
    first, *others = documents
    for key in ("device", "versions"):
        if any(each[key] != first[key] for each in others):
            raise SystemExit(f"the items differ in {key}; measure them again on one machine")
    rows = [row for each in documents for row in each["rows"]]
    launches = [row["launch_seconds"] for row in rows if "launch_seconds" in row]
    return {
        "device": first["device"],
        "datasheet": asdict(gpu(name)),
        "torch": first["versions"]["torch"],
        "cudnn": first["versions"].get("cudnn"),
        "date": first["date"],
        "launch_seconds": min(launches),
        "rows": [row for row in rows if "name" in row],
    }


def main() -> None:
    """Write the file, and read it as advise does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", help="the name of the GPU in the table")
    name = gpu(parser.parse_args().gpu).key
    paths = sorted(ITEMS.glob("operators-*.json"))
    if not paths:
        parser.error(f"no operators-*.json is in {ITEMS}; run gpu.py --only operators-0,...")
    measured.SHIPPED.mkdir(exist_ok=True)
    path = measured.SHIPPED / f"{name}.json"
    found = joined([json.loads(each.read_text()) for each in paths], name)
    write_atomically(path, json_text(found, indent=1) + "\n")
    print(f"{len(measured.read(path, own=False).calls)} kernels in {path}")


if __name__ == "__main__":
    main()
