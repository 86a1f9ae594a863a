import datetime
import gzip

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import read_table, store_dataframes_as_dataset, verify_dataset
from kartothek_cube.serialization import CsvSerializer

DAYS = [datetime.date(2020, 1, 1), None]
FRAME = pd.DataFrame({"x": [1, 2], "s": ["a;", "ü"], "d": DAYS, "v": [1.5, None]}).set_axis([5, 6])
TEXT = 'x;s;d;v\n1;"a;";2020-01-01;1.5\n2;ü;;\n'


@pytest.fixture
def blobs():
    return open_blobs("hmemory://")


@pytest.mark.parametrize("data", [FRAME, pa.Table.from_pandas(FRAME, preserve_index=False)])
def test_content(blobs, data):
    assert CsvSerializer(compress=False).store(blobs, "key", data) == "key.csv"
    assert blobs.get("key.csv").decode() == TEXT
    assert CsvSerializer().store(blobs, "key", data) == "key.csv.gz"
    assert gzip.decompress(blobs.get("key.csv.gz")).decode() == TEXT


def test_restore(blobs):
    key = CsvSerializer().store(blobs, "key", FRAME)
    df = CsvSerializer.restore_dataframe(blobs, key)
    assert df.index.equals(pd.RangeIndex(2))
    assert df["x"].tolist() == [1, 2]
    assert df["s"].tolist() == ["a;", "ü"]
    assert df["d"][0] == "2020-01-01"
    assert CsvSerializer.restore_dataframe(blobs, key, dtype={"x": str})["x"].tolist() == ["1", "2"]


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_empty_file(blobs, content):
    blobs.put("key.csv", content)
    df = CsvSerializer.restore_dataframe(blobs, "key.csv")
    assert df.shape == (0, 0)
    assert df.index.equals(pd.RangeIndex(0))


DAMAGED = {
    "no gzip": b"x;y\n1;2\n",
    "truncated": gzip.compress(b"x;y\n1;2\n")[:-9],
    "damaged": b"\x1f\x8b\x08\x00" + b"\xff" * 40,
    "unbalanced quote": gzip.compress(b'x;y\n1;2\n"'),
    "no UTF-8": gzip.compress(b"x;y\n\xff\xfe;1\n"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file(content):
    store = open_blobs("hmemory://").store
    store_dataframes_as_dataset(store, "u", [FRAME], df_serializer=CsvSerializer())
    (key,) = [key for key in store.keys() if key.endswith(".csv.gz")]
    store.put(key, content)
    with pytest.raises(CorruptDatasetError, match="not a readable CSV file"):
        read_table("u", store)
    assert [problem.kind for problem in verify_dataset("u", store).problems] == ["unreadable-file"]
    store.delete(key)
    with pytest.raises(MissingFileError, match=key):
        read_table("u", store)


def test_attributes():
    assert CsvSerializer().compress
    assert not CsvSerializer.type_stable
    assert CsvSerializer() == CsvSerializer(compress=True)
    assert CsvSerializer() != CsvSerializer(compress=False)
    assert len({CsvSerializer(), CsvSerializer(), CsvSerializer(compress=False)}) == 2
    assert repr(CsvSerializer(compress=False)) == "CsvSerializer(compress=False)"
