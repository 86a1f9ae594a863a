"""Datasets as dask DataFrames: what is read, indexed, hashed, shuffled and stored."""

import datetime

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.core.cube.constants import KTK_CUBE_DF_SERIALIZER
from kartothek_cube.core.errors import SchemaConflictError
from kartothek_cube.io import eager
from kartothek_cube.io.dask import dataframe
from kartothek_cube.io_components import dataset_read
from kartothek_cube.serialization import ParquetSerializer
from tests.support.cube_facades import ddf_of
from tests.support.cubes import as_dict, file_keys, files, frame, read_parquet
from tests.support.stores import CountingStore, Same

DATE, STAMP = datetime.date, pd.Timestamp


def compute(lazy):
    return lazy.compute(scheduler="sync")


def partitions(ddf):
    return dask.compute(*ddf.to_delayed(), scheduler="sync")


DF = frame(
    x=[0, 1, 2],
    p=["a", "b", "a"],
    i1=[7, 8, 8],
    t=["u", None, "w"],
    d=[DATE(2020, 1, 1), None, DATE(2020, 1, 2)],
    s=np.array(["2020-01-01", "2020-01-02", "NaT"], "M8[ns]"),
    b=[b"a", b"b", None],
    f=[0.5, None, 1.5],
)


@pytest.fixture
def stored(store):
    eager.store_dataframes_as_dataset(store, "u", [DF], partition_on="p", secondary_indices="i1")
    return store


@pytest.mark.parametrize("dates_as_object", [True, False])
@pytest.mark.parametrize("predicates", [None, [[("x", ">", 0)]], [[("p", "==", "nope")]]], ids=str)
@pytest.mark.parametrize("columns", [None, ["t", "p"], ["d"], []], ids=str)
def test_a_dask_dataframe_is_the_table(stored, dates_as_object, predicates, columns):
    arguments = {"dates_as_object": dates_as_object, "predicates": predicates, "columns": columns}
    ddf = dataframe.read_dataset_as_ddf("u", stored, **arguments)
    expected = eager.read_table("u", stored, **arguments)
    assert not ddf.known_divisions
    pd.testing.assert_frame_equal(compute(ddf).reset_index(drop=True), expected, check_index_type=False)
    pd.testing.assert_series_equal(ddf.dtypes, expected.dtypes)


def test_partitions_columns_and_indices(stored):
    assert [len(df) for df in partitions(dataframe.read_dataset_as_ddf("u", stored))] == [2, 1]
    by_index = dataframe.read_dataset_as_ddf("u", stored, dispatch_by=["i1"])
    assert [as_dict(df)["x"] for df in partitions(by_index)] == [[0], [2, 1]]
    assert dataframe.read_dataset_as_ddf("u", stored, dispatch_by=[]).npartitions == 1
    assert compute(dataframe.read_dataset_as_ddf("u", stored)["x"].sum()) == 3
    ddf = dataframe.read_dataset_as_ddf("u", stored, predicates=[[("t", "==", "u")]])
    assert compute(ddf["x"]).tolist() == [0]
    with dask.config.set(scheduler="sync"):
        assert len(dataframe.read_dataset_as_ddf("u", stored)) == 3
    ddf = dataframe.read_dataset_as_ddf("u", stored, categoricals=["p", "i1", "t"])
    assert [ddf[name].cat.known for name in ("p", "i1", "t")] == [True, True, False]
    assert list(ddf._meta["i1"].cat.categories) == [7, 8]
    frames = partitions(ddf)
    assert [list(df["i1"].cat.categories) for df in frames] == [[7, 8], [7, 8]]
    assert [sorted(df["t"].cat.categories) for df in frames] == [["u", "w"], []]
    result = compute(ddf)
    assert as_dict(result[["p", "i1", "t"]]) == {"p": ["a", "a", "b"], "i1": [7, 8, 8], "t": ["u", "w", None]}
    assert compute(ddf[["t", "i1"]]).dtypes.tolist() == [result["t"].dtype, result["i1"].dtype]
    options = {"dask_index_on": "i1", "columns": ["x"], "predicates": [[("i1", ">", 7)]]}
    ddf = dataframe.read_dataset_as_ddf("u", stored, **options)
    assert ddf.divisions == (8, 8)
    assert sorted(compute(ddf)["x"]) == [1, 2]
    assert sorted(compute(dataframe.read_dataset_as_ddf("u", stored, dask_index_on="i1")["x"])) == [0, 1, 2]
    empty = dataframe.read_dataset_as_ddf("u", stored, dask_index_on="i1", predicates=[[("i1", ">", 99)]])
    assert (empty.npartitions, len(compute(empty))) == (1, 0)


@pytest.mark.parametrize("columns", [["x"], ["p"], ["t", "x"], ["d", "i1"]], ids=str)
def test_only_the_columns_that_are_used_are_read(stored, monkeypatch, columns):
    read = []
    original = dataset_read.run_scans

    def run_scans(blobs, scans):
        read.extend(sorted(scan.columns) for scan in scans)
        return original(blobs, scans)

    monkeypatch.setattr(dataset_read, "run_scans", run_scans)
    result = compute(dataframe.read_dataset_as_ddf("u", stored)[columns])
    assert read == [sorted(set(columns) - {"p"})] * 2
    expected = eager.read_table("u", stored)[columns]
    pd.testing.assert_frame_equal(result.reset_index(drop=True), expected)


INDICES = {
    "int": [3, 1, 2],
    "float": [0.5, -1.5, 2.5],
    "str": ["b", "a", "ä"],
    "bytes": [b"b", b"a", b"c"],
    "bool": [True, False, True],
    "date": [DATE(2020, 1, 2), DATE(2020, 1, 1), DATE(2021, 1, 1)],
    "timestamp": [STAMP("2020-01-02"), STAMP("2020-01-01 01:02:03.000004"), STAMP("2021-01-01")],
    "zoned": [STAMP(f"2020-0{month}-01 12:00", tz="Europe/Berlin") for month in (7, 1, 8)],
}


@pytest.mark.parametrize("values", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("how", ["partition_on", "secondary_indices"])
@pytest.mark.parametrize("dates_as_object", [True, False])
@pytest.mark.parametrize("categoricals", [[], ["k"]], ids=str)
def test_a_column_becomes_the_index(store, values, how, dates_as_object, categoricals):
    df = frame(k=[*values, values[0]], x=[0, 1, 2, 3])
    eager.store_dataframes_as_dataset(store, "u", [df[:2], df[2:]], **{how: "k"})
    options = {"categoricals": categoricals, "dates_as_object": dates_as_object}
    ddf = dataframe.read_dataset_as_ddf("u", store, dask_index_on="k", **options)
    plain = eager.read_table("u", store, dates_as_object=dates_as_object).set_index("k")["x"]
    distinct = sorted(set(plain.index))
    assert ddf.divisions == (*distinct, distinct[-1]) and ddf.known_divisions
    if categoricals:
        assert ddf._meta.index.categories.equals(pd.Index(distinct, dtype=plain.index.dtype))
    for df_, value in zip(partitions(ddf), distinct, strict=True):
        assert (df_.index.name, set(df_.index)) == ("k", {value})
        assert sorted(df_["x"]) == sorted(plain[plain.index == value])


def test_rows_without_a_value_of_the_index_are_left_out(store):
    df = frame(k=[1.0, None], x=[0, 1])
    eager.store_dataframes_as_dataset(store, "u", [df], secondary_indices="k")
    assert compute(dataframe.read_dataset_as_ddf("u", store, dask_index_on="k"))["x"].tolist() == [0]


def test_rows_are_found_by_times_of_a_categorical_index(store):
    df = frame(k=INDICES["zoned"], x=[0, 1, 2])
    eager.store_dataframes_as_dataset(store, "u", [df], secondary_indices="k")
    ddf = dataframe.read_dataset_as_ddf("u", store, dask_index_on="k", categoricals=["k"])
    assert compute(ddf.loc[INDICES["zoned"][1]])["x"].tolist() == [1]


@pytest.mark.parametrize(
    "arguments, error, fragment",
    [
        ({"dask_index_on": ["i1"]}, TypeError, "list"),
        ({"dask_index_on": "i1", "dispatch_by": ["p"]}, ValueError, "dispatch_by"),
        ({"dask_index_on": "x"}, RuntimeError, r"dask_index_on .*Requested: x; .*i1, p.*_indices"),
        ({"dispatch_by": "x"}, RuntimeError, r"dispatch_by .*Requested: x; .*i1, p.*_indices"),
        ({"table": None}, TypeError, "None"),
        ({"table": "nope"}, RuntimeError, "nope"),
        ({"columns": ["nope"]}, ValueError, "nope"),
        ({"dataset_uuid": "nope"}, KeyError, "nope"),
    ],
)
def test_wrong_arguments_of_reads(stored, arguments, error, fragment):
    with pytest.raises(error, match=fragment):
        dataframe.read_dataset_as_ddf(**{"dataset_uuid": "u", "store": stored, **arguments})


def test_one_row_per_row_group(store):
    df = frame(x=range(5), p=[0, 0, 0, 1, 1])
    serializer = ParquetSerializer(chunk_size=2)
    eager.store_dataframes_as_dataset(store, "u", [df], partition_on="p", df_serializer=serializer)
    result = compute(dataframe.collect_dataset_metadata(store, "u"))
    expected = []
    for label, key in file_keys(store, "u").items():
        footer: pq.FileMetaData = read_parquet(store, key).metadata
        for i in range(footer.num_row_groups):
            group = footer.row_group(i)
            sizes = sum(group.column(c).total_uncompressed_size for c in range(group.num_columns))
            total = (footer.num_rows, footer.num_row_groups, footer.serialized_size)
            expected.append((label, i, group.total_byte_size, sizes, *total, group.num_rows))
    assert list(result.itertuples(index=False, name=None)) == expected
    assert list(result.index) == [0, 1, 0]
    assert list(result.columns) == [
        *("partition_label", "row_group_id", "row_group_compressed_size", "row_group_uncompressed_size"),
        *("number_rows_total", "number_row_groups", "serialized_size", "number_rows_per_row_group"),
    ]
    assert [str(dtype) for dtype in result.dtypes] == ["object"] + ["int64"] * 7


@pytest.mark.parametrize(
    "predicates, labels",
    [
        ([[("p", "==", "a")]], ["p=a"]),
        ([[("i1", "==", 7)]], ["p=a"]),
        ([[("x", "==", 99)]], ["p=a", "p=b"]),
        ([[("p", "==", "nope")]], []),
    ],
)
def test_predicates_choose_partitions(stored, predicates, labels):
    ddf = dataframe.collect_dataset_metadata(stored, "u", predicates=predicates)
    result = compute(ddf)
    assert [label.split("/")[0] for label in result["partition_label"]] == labels
    pd.testing.assert_series_equal(result.dtypes, ddf.dtypes)


@pytest.mark.parametrize("frac, files_", [(1, 20), (0.5, 10), (0.07, 1), (0.001, 1)])
def test_a_share_of_the_partitions(store, frac, files_):
    eager.store_dataframes_as_dataset(store, "u", [frame(x=range(20), p=range(20))], partition_on="p")
    result = compute(dataframe.collect_dataset_metadata(store, "u", frac=frac))
    assert result["partition_label"].nunique() == files_


@pytest.mark.parametrize("frac", [0, -0.5, 1.1, "1", None])
def test_wrong_shares(stored, frac):
    with pytest.raises(ValueError, match=f"frac is {frac!r}, but has to be"):
        dataframe.collect_dataset_metadata(stored, "u", frac=frac)


def hashes(df, columns):
    return pd.util.hash_pandas_object(df[columns], index=False).to_numpy()


@pytest.mark.parametrize("subset", [None, ["x"], ["t", "d"], ["d", "t"], ["p"], ["s", "b", "f"]], ids=str)
def test_hashes_of_partitions(stored, subset):
    result = compute(dataframe.hash_dataset(stored, "u", subset=subset))
    columns = subset or ["p", *sorted(set(DF) - {"p"})]
    expected = [hashes(df, columns).sum(dtype=np.uint64) for _, df in DF.groupby("p")]
    assert result.tolist() == expected
    assert result.dtype == np.uint64


@pytest.mark.parametrize("group_key", ["p", ["i1"], ["p", "i1"], ["t"]], ids=str)
@pytest.mark.parametrize("subset", [None, ["x"], ["d", "p"]], ids=str)
def test_hashes_of_groups(stored, group_key, subset):
    lazy = dataframe.hash_dataset(stored, "u", subset=subset, group_key=group_key)
    result = compute(lazy)
    columns = subset or ["p", *sorted(set(DF) - {"p"})]
    keys = [group_key] if isinstance(group_key, str) else group_key
    expected = pd.Series(hashes(DF, columns)).groupby([DF[key] for key in keys]).sum()
    assert result.to_dict() == expected.to_dict()
    assert result.dtype == lazy.dtype == np.uint64
    assert result.index.names == keys


def test_hashes_do_not_depend_on_order_and_partitions(store):
    df = frame(x=range(100), p=[1, 2] * 50)
    eager.store_dataframes_as_dataset(store, "a", [df])
    eager.store_dataframes_as_dataset(store, "b", [df[50:][::-1], df[:50]], partition_on="p")
    a, b = (compute(dataframe.hash_dataset(store, uuid, subset=["x"])) for uuid in ("a", "b"))
    assert a.sum() == b.sum()
    a, b = (compute(dataframe.hash_dataset(store, uuid, group_key="p")) for uuid in ("a", "b"))
    pd.testing.assert_series_equal(a, b)


def test_hashes_do_not_depend_on_gaps_in_the_same_file(store):
    rows = pa.table({"p": [0, 0, 0], "x": [1, None, 3], "y": [True, None, False]})
    eager.store_dataframes_as_dataset(store, "a", [rows])
    eager.store_dataframes_as_dataset(store, "b", [rows[:2], rows[2:]])
    a, b = (compute(dataframe.hash_dataset(store, uuid, ["x", "y"], "p")) for uuid in ("a", "b"))
    assert a.tolist() == b.tolist()


def test_groups_of_hashes_keep_all_digits_beside_gaps(store):
    tables = [pa.table({"x": values}) for values in ([1, None], [2**53, 2**53 + 1])]
    eager.store_dataframes_as_dataset(store, "u", tables)
    hashes = compute(dataframe.hash_dataset(store, "u", group_key="x"))
    assert hashes.index.tolist() == [1, 2**53, 2**53 + 1]


def test_hashes_of_nothing_and_of_unknown_columns(stored):
    nothing = [[("p", "==", "nope")]]
    assert compute(dataframe.hash_dataset(stored, "u", predicates=nothing)).tolist() == []
    assert compute(dataframe.hash_dataset(stored, "u", predicates=nothing, group_key="p")).tolist() == []
    with pytest.raises(ValueError, match="subset names no column"):
        dataframe.hash_dataset(stored, "u", subset=[])
    for subset in ("nope", ["nope"]):
        with pytest.raises(ValueError, match="unknown column nope"):
            dataframe.hash_dataset(stored, "u", subset=subset)
    with pytest.raises(ValueError, match="nope"):
        dataframe.hash_dataset(stored, "u", group_key="nope")


def store_ddf(store, ddf, **kwargs):
    return compute(dataframe.store_dataset_from_ddf(ddf, store, "u", **kwargs))


def test_each_partition_is_one_input_unless_there_are_to_be_fewer(store):
    dataset = store_ddf(store, ddf_of(frame(x=range(6), p=[0, 1] * 3), 3), partition_on="p")
    assert [label.split("/")[0] for label in dataset.partitions] == ["p=0", "p=1"] * 3
    assert dataset == eager.DatasetMetadata.load_from_store("u", store())
    fewer = store_ddf(store, ddf_of(frame(x=range(10)), 5), repartition_ratio=2, overwrite=True)
    assert len(fewer.partitions) == 3


def test_rows_are_sorted_by_columns(store):
    df = frame(x=[3, 1, 2], c=pd.Categorical(["b", "c", "a"], ["c", "b", "a"]))
    store_ddf(store, ddf_of(df), sort_partitions_by=["c"])
    assert list(files(store, "u").values()) == [{"x": [2, 3, 1], "c": ["a", "b", "c"]}]


def test_options_reach_the_dataset(store):
    options = {"table": "other", "secondary_indices": "x", "metadata": {"a": 1}, "partition_on": ["p"]}
    ddf = ddf_of(frame(x=[1, 2], p=[0, 1]))
    dataset = store_ddf(store, ddf, df_serializer=KTK_CUBE_DF_SERIALIZER, **options)
    assert (dataset.table_name, set(dataset.secondary_indices), dataset.metadata["a"]) == ("other", {"x"}, 1)
    assert dataset.partition_keys == ["p"]
    assert len(compute(dataframe.read_dataset_as_ddf("u", store, table="other"))) == 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_partitions_without_rows_make_no_file(store, shuffle):
    ddf = ddf_of(frame(x=range(6), p=[0, 1] * 3), 3)
    assert len(store_ddf(store, ddf[ddf["x"] < 2], partition_on="p", shuffle=shuffle).partitions) == 2


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("write", [dataframe.store_dataset_from_ddf, dataframe.update_dataset_from_ddf])
def test_a_dataset_is_not_created_out_of_nothing(store, shuffle, write):
    ddf = ddf_of(frame(x=range(6), p=[0, 1] * 3), 3)
    graph = write(ddf[ddf["x"] > 9], store, "u", partition_on="p", shuffle=shuffle)
    with pytest.raises(ValueError, match="empty"):
        compute(graph)


@pytest.mark.parametrize(
    "write", [dataframe.store_dataset_from_ddf, dataframe.update_dataset_from_ddf], ids=["store", "update"]
)
def test_a_shuffle_of_nothing_without_partition_keys_is_an_empty_dataset(store, write):
    ddf = ddf_of(DF, 2)
    dataset = compute(write(ddf[ddf["x"] > 9], store, "u", shuffle=True))
    assert dataset.partitions == {}
    assert eager.read_table("u", store).dtypes["x"] == DF.dtypes["x"]


def rows(n=400):
    rng = np.random.default_rng(1)
    return frame(x=range(n), p=rng.integers(0, 4, n), k=rng.choice(["u", "v"], n), d=DATE(2020, 1, 1))


@pytest.mark.slow("shuffles many partitions")
@pytest.mark.parametrize("partition_on", [None, "p", ["p", "k"]], ids=str)
@pytest.mark.parametrize("num_buckets, bucket_by", [(1, None), (3, None), (3, "x"), (2, ["x", "k"])], ids=str)
@pytest.mark.parametrize("npartitions", [1, 5])
def test_shuffled_rows_are_in_few_files(store, partition_on, num_buckets, bucket_by, npartitions):
    df = rows()
    buckets = {"num_buckets": num_buckets, "bucket_by": bucket_by}
    dataset = store_ddf(store, ddf_of(df, npartitions), partition_on=partition_on, shuffle=True, **buckets)
    labels = [label.rpartition("/")[0] for label in dataset.partitions]
    keys = df.groupby(partition_on).ngroups if partition_on else 1
    assert len(set(labels)) == keys
    assert {labels.count(label) for label in labels} == {num_buckets}
    result = eager.read_table("u", store).sort_values("x", ignore_index=True)[list(df)]
    pd.testing.assert_frame_equal(result, df)


def test_updates(stored):
    more = DF.assign(x=DF["x"] + 10)
    dataset = compute(dataframe.update_dataset_from_ddf(ddf_of(more), stored, "u", delete_scope=[{"p": "a"}]))
    assert [label.split("/")[0] for label in dataset.partitions] == ["p=b", "p=a", "p=b"]
    assert sorted(eager.read_table("u", stored)["x"]) == [1, 10, 11, 12]
    dataset = compute(dataframe.update_dataset_from_ddf(None, stored, "u", delete_scope=[{"p": "b"}]))
    assert [label.split("/")[0] for label in dataset.partitions] == ["p=a"]
    assert sorted(dataset.load_all_indices(stored()).indices["i1"].index_dct) == [7, 8]


def test_an_update_of_a_table_that_the_dataset_does_not_have(stored):
    with pytest.raises(TypeError, match="other"):
        dataframe.update_dataset_from_ddf(ddf_of(DF), stored, "u", table="other")


def test_reads_count_no_other_calls_than_the_files(stored):
    counting = Same.of(CountingStore(stored()))
    ddf = dataframe.read_dataset_as_ddf("u", counting)
    counting().reset()
    compute(ddf)
    assert len({key for _, key in counting().log}) == 2


def test_an_update_with_other_columns(store):
    compute(dataframe.store_dataset_from_ddf(ddf_of(frame(x=[1, 2])), store, "u"))
    with pytest.raises(ValueError, match="Schema violation"):
        compute(dataframe.update_dataset_from_ddf(ddf_of(frame(x=[3], z=[1.5])), store, "u"))
    compute(dataframe.update_dataset_from_ddf(ddf_of(frame(x=[3], z=[1.5])), store, "u", schema_mode="merge"))
    result = eager.read_table("u", store).sort_values("x")
    assert as_dict(result) == {"x": [1, 2, 3], "z": [None, None, 1.5]}


def test_shuffles_take_columns_of_numbers_and_numbers_of_numpy(store):
    df = pd.DataFrame({"p": [1, 2, 1], 0: [1.0, 2.0, 3.0]})
    options = {"shuffle": True, "num_buckets": np.int64(2), "bucket_by": 0}
    for uuid, keys in (("u", "p"), ("v", "0")):
        compute(dataframe.update_dataset_from_ddf(ddf_of(df, 2), store, uuid, partition_on=keys, **options))
        found = eager.read_table(uuid, store).sort_values("0")
        assert found["0"].tolist() == [1.0, 2.0, 3.0] and found["p"].tolist() == [1, 2, 1]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("convert, stored", [(True, "object"), (False, "string")])
def test_text_that_dask_converts_is_stored_as_pandas_has_it(store, convert, stored, shuffle):
    """kartothek cannot query cubes with columns of the type string."""
    texts = frame(p=["a", "b"], t=["ä", None], x=[1, 2])
    texts = texts if convert else texts.astype({"p": "string", "t": "string"})
    with dask.config.set({"dataframe.convert-string": convert}):
        rows = dd.from_pandas(texts, npartitions=1)
        assert str(rows.dtypes["t"]) == "string"
        options = {"partition_on": "p", "table": "table", "shuffle": shuffle}
        dataset = compute(dataframe.store_dataset_from_ddf(rows, store, "u", **options))
    columns = dataset.schema.pandas_metadata["columns"]
    assert {column["name"]: column["numpy_type"] for column in columns} == {
        "p": stored,
        "t": stored,
        "x": "int64",
    }
    pd.testing.assert_frame_equal(eager.read_table("u", store), texts)


BIG, DAYS = 2**53 + 1, pd.to_datetime(np.arange(40), unit="D")


def of_partitions(*frames):
    """A dask DataFrame with the meta of the first partition, whatever the others are."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_delayed(list(map(dask.delayed, frames)), meta=frames[0][:0], verify_meta=False)


@pytest.mark.parametrize(
    "partitions",
    [
        [pd.Series([BIG, None], dtype=object), [BIG, 3]],
        [[BIG, 3], pd.array([4, None], "Int64")],
        [[1, BIG], pd.Series([None, None], dtype=object)],
        [pd.array([2**64 - 1, None], "UInt64"), np.array([1, 2], "uint64")],
        [["a", "b"], pd.Categorical(["a", None])],
        [pd.Categorical(["a", "b"]), ["a", "c"]],
        [pd.Categorical(["a", "b"], ordered=True), pd.Categorical(["c", "b"])],
    ],
)
def test_a_shuffle_changes_neither_values_nor_types(store, partitions):
    ddf = of_partitions(*(pd.DataFrame({"p": [1, 2], "v": values}) for values in partitions))
    for uuid, shuffle in (("plain", False), ("shuffled", True)):
        compute(dataframe.store_dataset_from_ddf(ddf, store, uuid, partition_on="p", shuffle=shuffle))
    plain, shuffled = (eager.read_table(uuid, store) for uuid in ("plain", "shuffled"))
    keys = ["p", "v"]
    pd.testing.assert_frame_equal(
        plain.sort_values(keys, ignore_index=True), shuffled.sort_values(keys, ignore_index=True)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda df: df.set_index("p", drop=False),
        lambda df: df[["v", "p"]],
        lambda df: df.assign(p=df["p"].cat.as_ordered()),
    ],
    ids=["index", "order of columns", "order of categories"],
)
def test_a_shuffle_takes_partitions_that_differ_in_what_is_not_stored(store, change):
    df = pd.DataFrame({"p": pd.Categorical([1, 2]), "v": [3, 4]})
    ddf = of_partitions(df, change(df))
    compute(dataframe.store_dataset_from_ddf(ddf, store, "u", partition_on="p", shuffle=True))
    assert eager.read_table("u", store).sort_values("p")["v"].tolist() == [3, 3, 4, 4]


@pytest.mark.parametrize(
    "values, same",
    [
        (np.arange(40), np.arange(40.0)),
        (np.arange(40), pd.array([*range(39), None], "Int64")),
        (np.arange(40), pd.Series(range(40), dtype=object)),
        (np.arange(40) / 2, (np.arange(40) / 2).astype("float32")),
        (DAYS.as_unit("ns"), DAYS.as_unit("us")),
    ],
    ids=["float", "nullable", "object", "float32", "unit"],
)
def test_equal_values_of_other_types_are_in_one_bucket(values, same):
    shuffled = dataframe.shuffle_by_key(
        of_partitions(*(pd.DataFrame({"p": 0, "k": k, "v": 1}) for k in (values, same))),
        ["p"],
        "k",
        4,
        {"k": pa.float64()} if same.dtype == float else {},
    )
    buckets = [set(rows["k"].dropna()) for part in partitions(shuffled) for rows in dataframe.buckets(part)]
    assert len(buckets) == 4
    assert len(set.union(*buckets)) == sum(map(len, buckets))


def test_partitions_of_integers_and_floats_fit_a_stored_column_of_floats(store):
    eager.store_dataframes_as_dataset(store, "u", [pd.DataFrame({"p": [9], "v": [0.5]})], partition_on="p")
    ddf = of_partitions(pd.DataFrame({"p": [1], "v": [1]}), pd.DataFrame({"p": [1], "v": [1.5]}))
    compute(dataframe.update_dataset_from_ddf(ddf, store, "u", shuffle=True, num_buckets=2))
    assert sorted(eager.read_table("u", store)["v"]) == [0.5, 1.0, 1.5]


def test_a_gap_tells_of_the_whole_partition_that_its_floats_are_integers(store):
    eager.store_dataframes_as_dataset(store, "u", [pd.DataFrame({"x": [1], "p": 1})], partition_on="p")
    df = pd.DataFrame({"x": [2.0, None, 3.0], "p": [1, 1, 2]})
    for shuffle in (False, True):
        compute(dataframe.update_dataset_from_ddf(ddf_of(df), store, "u", shuffle=shuffle))
        ddf = of_partitions(df, df.dropna())
        with pytest.raises(SchemaConflictError, match="int64"):
            compute(dataframe.update_dataset_from_ddf(ddf, store, "u", shuffle=shuffle))
    assert sorted(eager.read_table("u", store)["x"].dropna()) == [1, 2, 2, 3, 3]


@pytest.mark.parametrize("shuffle", [False, True])
def test_categories_of_missing_values_fit_all_types(store, shuffle):
    frames = [pd.DataFrame({"x": pd.Series(v, dtype="category"), "p": 1}) for v in (["a"], [None], ["b"])]
    ddf = of_partitions(*frames)
    compute(dataframe.store_dataset_from_ddf(ddf, store, "u", shuffle=shuffle))
    assert eager.read_table("u", store)["x"].dropna().tolist() == ["a", "b"]


def test_keys_of_several_units_are_one_partition(store):
    frames = (pd.DataFrame({"p": DAYS[:5].as_unit(unit), "x": 1}) for unit in ("ns", "us"))
    ddf = of_partitions(*frames)
    dataset = compute(dataframe.store_dataset_from_ddf(ddf, store, "u", partition_on="p", shuffle=True))
    assert len(dataset.partitions) == 5


@pytest.mark.parametrize(
    "first, second, text",
    [
        (
            [BIG],
            [0.5],
            "^Column 'v' is float64 in a partition of the DataFrame but int64 in its meta.*astype",
        ),
        ([DATE(2020, 1, 1)], pd.to_datetime(["2020-01-01"]), r"(?s)partitions of the DataFrame.*v .*date32"),
    ],
)
def test_partitions_of_other_kinds_are_a_conflict(store, first, second, text):
    ddf = of_partitions(*(pd.DataFrame({"p": [1], "v": values}) for values in (first, second)))
    lazy = dataframe.store_dataset_from_ddf(ddf, store, "u", partition_on="p", shuffle=True)
    with pytest.raises(SchemaConflictError, match=text):
        compute(lazy)


COLUMNS = ("partition_on", "secondary_indices", "sort_partitions_by", "bucket_by")
UNKNOWN = [(DF, {name: "nope"}, ValueError, f"^{name}: unknown column nope; available: ") for name in COLUMNS]
RESERVED, RATIOS = ("__KTK_HASH_BUCKET", "__KTK_PAYLOAD"), (-1, 0, True, float("nan"), float("inf"))


@pytest.mark.parametrize(
    "df, error, text",
    [
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), ValueError, "more than once: x"),
        (frame(x=pd.interval_range(0, 2)), TypeError, "'x' of type interval.* cannot be stored"),
        (frame(x=pd.to_timedelta([1])), TypeError, "'x' of type duration.* cannot be stored"),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_columns_that_cannot_be_stored_are_refused_before_the_input_is_computed(
    store, shuffle, df, error, text
):
    with pytest.raises(error, match=text):
        dataframe.store_dataset_from_ddf(of_partitions(df), store, "u", shuffle=shuffle)


def test_a_shuffle_names_columns_of_the_meta_that_a_partition_lacks(store):
    lazy = dataframe.store_dataset_from_ddf(of_partitions(DF, DF[["x"]]), store, "u", shuffle=True)
    with pytest.raises(ValueError, match="lacks columns of its meta: "):
        compute(lazy)


@pytest.mark.parametrize(
    "df, arguments, error, text",
    [
        (DF, {"table": None}, TypeError, "None"),
        (DF, {"partition_on": "nope", "shuffle": True}, ValueError, "nope"),
        (DF, {"shuffle": True, "bucket_by": ["nope"]}, ValueError, "nope"),
        (DF, {"num_buckets": 0}, ValueError, "num_buckets must be a positive integer but is 0"),
        *((DF, {"shuffle": True, "num_buckets": n}, ValueError, f"but is {n}") for n in (None, 0, True)),
        *((DF, {"repartition_ratio": ratio}, ValueError, "must be a positive") for ratio in RATIOS),
        *UNKNOWN,
        *((DF.assign(**{name: 1}), {"shuffle": True}, ValueError, f"{name}.*rename") for name in RESERVED),
    ],
)
def test_wrong_arguments_of_stores_are_refused_at_once(store, df, arguments, error, text):
    with pytest.raises(error, match=text):
        dataframe.store_dataset_from_ddf(ddf_of(df), store, "u", **arguments)
