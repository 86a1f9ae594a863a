"""Datasets that kartothek 5.3, plateau and this library write in turn.

What kartothek 5.3 wrote is recorded by tools/record_kartothek.py; plateau runs here.
"""

import datetime
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plateau.io import eager as plateau

from kartothek_cube.api.dataset import DatasetFactory
from kartothek_cube.io import eager
from tests.support.paths import DATA

# plateau and its stores warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

RECORDED = DATA / "interop"

SALES = {"partition_on": ["COUNTRY"], "secondary_indices": ["SHOP", "CITY"]}
NUMBERS = {"partition_on": ["YEAR"], "secondary_indices": ["SHOP"]}
DAYS = [datetime.date(2020, 1, 31), datetime.date(2020, 2, 1)]

#: kinds of columns that plateau updates itself, and their values
KINDS = {
    "text": pd.Series(["Ulm", "York"]),
    "object": pd.Series(["Ulm", "York"], dtype=object),
    "nullable text": pd.Series(["Ulm", "York"], dtype="string"),
    "category": pd.Series(["Ulm", "York"], dtype="category"),
    "bytes": pd.Series([b"Ulm", b"York"], dtype=object),
    "int8": pd.Series([1, 2], dtype="int8"),
    "uint16": pd.Series([1, 2], dtype="uint16"),
    "float": pd.Series([1.5, 2.5], dtype="float32"),
    "bool": pd.Series([True, False]),
    "date": pd.Series(DAYS, dtype=object),
    "milliseconds": pd.Series(pd.to_datetime(DAYS)).astype("datetime64[ms]"),
    "nanoseconds": pd.Series(pd.to_datetime(DAYS)).astype("datetime64[ns]"),
}


@pytest.fixture
def url(tmp_path):
    return f"hfs://{tmp_path}"


def recorded(name: str, tmp_path: Path) -> None:
    shutil.copytree(RECORDED / name, tmp_path, dirs_exist_ok=True)


def sales(who: int) -> pd.DataFrame:
    """Rows of the library with this number, as the recorded ones."""
    columns = {"SHOP": [1, 2], "SALES": [10.0 * who, 10.0 * who + 1], "COUNTRY": ["DE", "GB"]}
    return pd.DataFrame({**columns, "CITY": ["Ulm", "York"], "NAME": ["a", "b"]})


def numbers(who: int) -> pd.DataFrame:
    return sales(who)[["SHOP", "SALES"]].assign(YEAR=[2020, 2021])


def update(url, frames, library=eager, **options):
    library.update_dataset_from_dataframes(frames, store=url, dataset_uuid="sales", **options)


def rows_of(*libraries: int) -> list[float]:
    return [10.0 * who + row for who in libraries for row in (0, 1)]


def check(uuid: str, url: str, *libraries: int) -> None:
    """All rows are there, to both libraries and by index, and nothing is wrong with the dataset."""
    assert sorted(eager.read_table(uuid, url)["SALES"]) == rows_of(*libraries)
    assert sorted(plateau.read_table(uuid, url)["SALES"]) == rows_of(*libraries)
    for read in (eager.read_table, plateau.read_table):
        found = read(uuid, url, predicates=[[("SHOP", "==", 2)]])
        assert sorted(found["SALES"]) == rows_of(*libraries)[1::2]
    report = eager.verify_dataset(uuid, url)
    assert report.ok, report


def index_type(uuid: str, url: str, column: str) -> pa.DataType:
    """Type of the values in the file of an index."""
    index = DatasetFactory(uuid, url).indices[column]
    return pq.read_schema(url.removeprefix("hfs://") + "/" + index.index_storage_key).field(0).type


@pytest.mark.parametrize("uuid, rows, options", [("sales", sales, SALES), ("numbers", numbers, NUMBERS)])
def test_after_kartothek(uuid, rows, options, url, tmp_path):
    recorded("created", tmp_path)
    eager.update_dataset_from_dataframes([rows(2)], store=url, dataset_uuid=uuid, **options)
    check(uuid, url, 1, 2)
    eager.build_dataset_indices(url, uuid, ["SALES"])
    eager.garbage_collect_dataset(dataset_uuid=uuid, store=url)
    check(uuid, url, 1, 2)


def test_kartothek_updates_what_this_library_wrote(url, tmp_path):
    recorded("updated", tmp_path)
    check("sales", url, 1, 2, 4)
    check("numbers", url, 1, 2, 3, 4)
    assert index_type("sales", url, "CITY") == pa.string()
    found = DatasetFactory("sales", url).load_all_indices().indices["SALES"]
    assert found.observed_values().tolist() == rows_of(1, 2, 4)


def test_alternately(url, tmp_path):
    recorded("updated", tmp_path)
    options = {**NUMBERS, "secondary_indices": ["SHOP", "SALES"]}
    for who, library in enumerate([plateau, eager, plateau, eager], start=5):
        library.update_dataset_from_dataframes([numbers(who)], store=url, dataset_uuid="numbers", **options)
        library.garbage_collect_dataset(dataset_uuid="numbers", store=url)
        check("numbers", url, *range(1, who + 1))


def test_plateau_indexes_what_it_cannot_update_otherwise(url, tmp_path):
    recorded("updated", tmp_path)
    options = {**SALES, "secondary_indices": ["SHOP", "CITY", "SALES"]}
    with pytest.raises(TypeError, match="Expected `string` but got `large_string`"):
        update(url, [sales(5)], plateau, **options)
    plateau.build_dataset_indices(url, "sales", ["CITY"])
    for who, library in enumerate([plateau, eager, plateau, eager], start=5):
        update(url, [sales(who)], library, **options)
        library.garbage_collect_dataset(dataset_uuid="sales", store=url)
        check("sales", url, 1, 2, *range(4, who + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_what_plateau_wrote(kind, url):
    frame = sales(1).assign(CITY=KINDS[kind])
    plateau.store_dataframes_as_dataset(store=url, dataset_uuid="sales", dfs=[frame], **SALES)
    written = index_type("sales", url, "CITY")
    check("sales", url, 1)
    for who, library in enumerate([eager, plateau, eager, plateau], start=2):
        frame = frame.assign(SALES=sales(who)["SALES"])
        update(url, [frame], library, **SALES)
        check("sales", url, *range(1, who + 1))
    if kind != "nanoseconds":  # plateau takes microseconds for them
        assert index_type("sales", url, "CITY") == written


def replace_all(url):
    update(url, [sales(2)], delete_scope=[{}], partition_on=["COUNTRY"])


def index_after_loss(url):
    key = DatasetFactory("sales", url).indices["CITY"].index_storage_key
    Path(url.removeprefix("hfs://"), key).unlink()
    assert eager.repair_dataset("sales", url).ok


@pytest.mark.parametrize(
    "change",
    [
        *(replace_all, index_after_loss),
        lambda url: update(url, [sales(2).iloc[:1]], delete_scope=[{"COUNTRY": "DE"}], **SALES),
        lambda url: (update(url, [], delete_scope=[{}]), update(url, [sales(2)], **SALES)),
        lambda url: eager.build_dataset_indices(url, "sales", ["CITY"]),
        lambda url: eager.build_dataset_indices(url, "sales", ["NAME"]),
    ],
)
def test_indices_keep_the_type_of_their_library(change, url):
    plateau.store_dataframes_as_dataset(store=url, dataset_uuid="sales", dfs=[sales(1)], **SALES)
    written = index_type("sales", url, "CITY")
    change(url)
    indices = DatasetFactory("sales", url).secondary_indices
    texts = set(indices) & {"CITY", "NAME"}
    assert {column: index_type("sales", url, column) for column in texts} == dict.fromkeys(texts, written)
    update(url, [sales(3)], plateau, partition_on=["COUNTRY"], secondary_indices=list(indices))
    report = eager.verify_dataset("sales", url)
    assert report.ok, report


def test_new_datasets_have_indices_that_kartothek_updates(url):
    table = pa.table({"CITY": pa.array(["Ulm"], pa.large_string())})
    eager.store_dataframes_as_dataset(url, "sales", [table], secondary_indices=["CITY"])
    assert index_type("sales", url, "CITY") == pa.string()


def test_plateau_collects_the_files_of_older_states(url, tmp_path):
    """Its collector goes by the prefixes ``<uuid>/indices/`` and ``<uuid>/table/``."""
    eager.store_dataframes_as_dataset(url, "sales", [sales(1)], **SALES)
    eager.keep_dataset_history("sales", url, 5)
    replace_all(url)
    assert eager.verify_dataset("sales", url).ok
    plateau.garbage_collect_dataset(dataset_uuid="sales", store=url)
    report = eager.verify_dataset("sales", url)
    assert {problem.kind for problem in report.problems} == {"history-file"}
    assert {problem.key.split("/")[1] for problem in report.problems} == {"indices", "table"}
    assert list((tmp_path / "sales/_history").iterdir())
    assert sorted(eager.read_table("sales", url)["SALES"]) == rows_of(2)
