"""Record datasets of kartothek 5.3 in tests/data/interop, before and after updates by other libraries.

    python tools/record_kartothek.py /path/to/python3.8

The argument is an interpreter with kartothek 5.3; the script itself needs the extra ``test``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from plateau.io import eager as plateau

from kartothek_cube.io import eager

TARGET = Path(__file__).parent.parent / "tests/data/interop"

#: options by dataset; plateau changes the type of text columns so that kartothek cannot update them any more
DATASETS: dict[str, dict[str, Any]] = {
    "sales": {"partition_on": ["COUNTRY"], "secondary_indices": ["SHOP", "CITY"]},
    "numbers": {"partition_on": ["YEAR"], "secondary_indices": ["SHOP"]},
}


def rows(name: str, writer: int) -> dict[str, list[object]]:
    """Rows of a dataset; the values of ``SALES`` depend on the library that writes them."""
    data: dict[str, list[object]] = {"SHOP": [1, 2], "SALES": [10.0 * writer, 10.0 * writer + 1]}
    if name == "sales":
        return {**data, "COUNTRY": ["DE", "GB"], "CITY": ["Ulm", "York"], "NAME": ["a", "b"]}
    return {**data, "YEAR": [2020, 2021]}


#: runs on Python 3.8
KARTOTHEK = """
import functools, json, sys
import pandas as pd
from kartothek.io.eager import (
    build_dataset_indices,
    garbage_collect_dataset,
    store_dataframes_as_dataset,
    update_dataset_from_dataframes,
)
from storefact import get_store_from_url

url, step, name, rows, options = sys.argv[1:]
store = functools.partial(get_store_from_url, url)
frame, options = pd.DataFrame(json.loads(rows)), json.loads(options)
if step == "create":
    store_dataframes_as_dataset(store=store, dataset_uuid=name, dfs=[frame], **options)
else:
    update_dataset_from_dataframes([frame], store=store, dataset_uuid=name, **options)
    build_dataset_indices(store, name, ["SALES"])
    garbage_collect_dataset(dataset_uuid=name, store=store)
"""


def run_kartothek(python: str, url: str, step: str, name: str, writer: int) -> None:
    arguments = [url, step, name, json.dumps(rows(name, writer)), json.dumps(DATASETS[name])]
    subprocess.run([python, "-W", "ignore", "-c", KARTOTHEK, *arguments], check=True)


def record(python: str) -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        url = f"hfs://{folder}"
        for name in DATASETS:
            run_kartothek(python, url, "create", name, 1)
        shutil.copytree(folder, TARGET / "created")
        for name, options in DATASETS.items():
            frame = pd.DataFrame(rows(name, 2))
            eager.update_dataset_from_dataframes([frame], store=url, dataset_uuid=name, **options)
            if name == "numbers":
                frame = pd.DataFrame(rows(name, 3))
                plateau.update_dataset_from_dataframes([frame], store=url, dataset_uuid=name, **options)
            run_kartothek(python, url, "update", name, 4)
        shutil.copytree(folder, TARGET / "updated")


if __name__ == "__main__":
    record(sys.argv[1])
