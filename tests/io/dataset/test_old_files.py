"""Files of pyarrow before 0.14, which kartothek wrote until 2019."""

import datetime
import shutil

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from deltalake import DeltaTable

from kartothek_cube.api import cube as api
from kartothek_cube.api.dataset import DatasetFactory, read_dataset_as_ddf
from kartothek_cube.io import arrow_cube, eager
from kartothek_cube.serialization.parquet import read_parquet
from tests.support.paths import DATA

DAYS = [pd.Timestamp("2018-01-01"), pd.Timestamp("2018-01-02"), pd.Timestamp("2018-01-03 12:00")]
TYPES = {"T": "datetime64[ns]", "ZONED": "datetime64[ns, Europe/Berlin]", "NOTHING": "object", "V": "float64"}
CUBE = api.Cube(["T"], ["P"], "cube")
C = api.C


@pytest.fixture
def store(tmp_path):
    shutil.copytree(DATA / "pyarrow-0.13", tmp_path, dirs_exist_ok=True)
    return f"hfs://{tmp_path}"


@pytest.mark.parametrize("uuid", ["plain", "by_time"])
def test_columns_are_as_they_were_written(uuid, store):
    frame = eager.read_table(uuid, store)
    assert {name: str(frame[name].dtype) for name in TYPES} == TYPES
    assert eager.read_table(uuid, store, columns=["V"])["V"].tolist() == [1, 2, 3]
    assert frame["T"].tolist() == DAYS
    assert frame["ZONED"].tolist() == [day.tz_localize("Europe/Berlin") for day in DAYS]
    assert frame["NOTHING"].isna().all()
    assert [list(map(pd.Timestamp, times)) for times in frame["TIMES"]] == [DAYS[:1], [], DAYS[2:]]
    in_dask = read_dataset_as_ddf(uuid, store).compute().reset_index(drop=True)
    pd.testing.assert_frame_equal(in_dask, frame, check_dtype=False)


@pytest.mark.parametrize("uuid", ["plain", "by_time"])
@pytest.mark.parametrize(
    "literal, found",
    [
        (("T", "==", DAYS[1]), [2]),
        (("T", ">", DAYS[0]), [2, 3]),
        (("T", "in", [DAYS[0], DAYS[2]]), [1, 3]),
        (("ZONED", "<=", DAYS[1].tz_localize("Europe/Berlin")), [1, 2]),
    ],
    ids=str,
)
def test_predicates_compare_the_times_that_were_written(uuid, literal, found, store):
    assert eager.read_table(uuid, store, predicates=[[literal]])["V"].tolist() == found


@pytest.mark.parametrize("uuid", ["plain", "by_time"])
def test_datasets_can_be_updated(uuid, store):
    new = eager.read_table(uuid, store).iloc[[0]].assign(V=9.0, T=pd.Timestamp("2019-01-01"))
    eager.update_dataset_from_dataframes([new.astype({"T": "datetime64[ns]"})], store, uuid)
    frame = eager.read_table(uuid, store, predicates=[[("T", ">=", DAYS[1])]])
    assert dict(zip(frame["V"], frame["T"], strict=True)) == {
        2: DAYS[1],
        3: DAYS[2],
        9: pd.Timestamp("2019-01-01"),
    }
    assert eager.verify_dataset(uuid, store, deep=True).problems == ()


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("uuid", ["plain", "by_time", "cube++seed"])
def test_verification_finds_no_problem(uuid, deep, store):
    assert eager.verify_dataset(uuid, store, deep=deep).problems == ()


def test_indices_have_the_zone_of_the_column(store):
    indices = DatasetFactory("plain", store).load_all_indices().indices
    assert [str(indices[name].columns_data.values.type) for name in ("T", "ZONED")] == [
        "timestamp[ns]",
        "timestamp[ns, tz=Europe/Berlin]",
    ]


def test_cubes_can_be_queried_and_changed(store):
    later = C("T") >= DAYS[1]
    assert api.query_cube(CUBE, store, conditions=later)[0]["V"].tolist() == [2, 3]
    rows = duckdb.from_arrow(arrow_cube.cube_dataset(CUBE, store)).filter("T > TIMESTAMP '2018-01-03'")
    assert rows.project("T").fetchall() == [(datetime.datetime(2018, 1, 3, 12),)]
    new = pd.DataFrame({"P": [2], "T": DAYS[1:2], "NOTHING": [None], "V": [8.0]})
    api.append_to_cube(new, CUBE, store)
    api.extend_cube({"more": pd.DataFrame({"P": [2], "T": DAYS[2:], "W": [5]})}, CUBE, store)
    api.compact_cube(CUBE, store)
    [frame] = api.query_cube(CUBE, store, conditions=later)
    assert frame[["V", "W"]].fillna(0).to_numpy().tolist() == [[8, 0], [3, 5]]
    assert api.verify_cube(CUBE, store, deep=True).problems == ()


def test_published_tables_show_no_old_files(store, tmp_path):
    """Other libraries take their times for those of UTC, and cannot read columns of nulls."""
    with pytest.raises(ValueError, match="other readers take its times for those of UTC"):
        api.publish_cube(CUBE, store)
    assert not (tmp_path / "cube++seed/_delta_log").exists()
    api.publish_cube(CUBE, store, compact=True)
    table = DeltaTable(str(tmp_path / "cube++seed"))
    later = table.to_pyarrow_dataset().to_table(filter=pads.field("T") >= DAYS[1].to_pydatetime())
    assert sorted(later["T"].to_pylist()) == DAYS[1:]
    assert pl.read_delta(str(tmp_path / "cube++seed"))["T"].sort().to_list() == DAYS


@pytest.mark.parametrize("uuid", ["plain", "by_time", "cube++seed"])
def test_adopted_files_have_the_times_that_were_written(uuid, store, tmp_path):
    adopted = api.Cube(["T"], [], "adopted")
    api.adopt_dataset(tmp_path / uuid / "table", adopted, store, "seed")
    frame = api.query_cube(adopted, store)[0]
    assert frame["T"].tolist() == DAYS
    if uuid != "cube++seed":
        assert frame["ZONED"].tolist() == [day.tz_localize("Europe/Berlin") for day in DAYS]
        assert [list(map(pd.Timestamp, times)) for times in frame["TIMES"]] == [DAYS[:1], [], DAYS[2:]]
    api.append_to_cube(frame.assign(T=frame["T"] + pd.Timedelta(days=9)), adopted, store)
    assert api.verify_cube(adopted, store, deep=True).problems == ()


def test_old_files_after_new_ones(store):
    new = pd.DataFrame({"P": [1], "T": DAYS[:1], "NOTHING": [None], "V": [9.0]})
    api.update_cube({"seed": new}, CUBE, store, datasets=["seed"], remove_conditions=C("P") == 1)
    [frame] = api.query_cube(CUBE, store)
    assert (frame["T"].tolist(), frame["V"].tolist()) == (DAYS, [9, 2, 3])


def test_times_of_other_writers_are_of_utc():
    """Without a logical type, that is what the format says."""
    [path] = DATA.glob("pyarrow-0.13/plain/table/*.parquet")
    arrow, other = b"parquet-cpp version 1.5.1-SNAPSHOT", b"parquet-mr version 1.10.1 (build a89)"
    content = path.read_bytes()
    assert content.count(arrow) == 1
    columns = read_parquet(content, "a file", ["T"]).schema
    assert columns.field("T").type == pa.timestamp("ns")
    columns = read_parquet(content.replace(arrow, other[: len(arrow)]), "a file", ["T"]).schema
    assert columns.field("T").type == pa.timestamp("ns", "UTC")
