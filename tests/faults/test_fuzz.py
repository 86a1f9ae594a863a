"""Files by strangers: broken bytes give documented errors, and nothing outside the dataset is touched."""

import json
import os
import subprocess
import sys

import msgpack
import pandas as pd
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kartothek_cube.api import cube as api
from kartothek_cube.api.dataset import (
    garbage_collect_dataset,
    read_table,
    store_dataframes_as_dataset,
    update_dataset_from_dataframes,
)
from kartothek_cube.core.errors import KartothekCubeError
from tests.support.cubes import filled, memory, snapshot
from tests.support.paths import ROOT
from tests.support.stores import CountingStore, Same

#: inputs; KARTOTHEK_CUBE_INPUTS asks for more
INPUTS = int(os.environ.get("KARTOTHEK_CUBE_INPUTS", "500"))
CUBE = api.Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube", index_columns=["i1"])
ACTIONS = {
    "query": lambda store: api.query_cube(CUBE, store),
    "condition": lambda store: api.query_cube(CUBE, store, conditions=api.C("i1") == 1),
    "groups": lambda store: api.query_cube(CUBE, store, partition_by="i1"),
    "read": lambda store: read_table("cube++seed", store),
    "append": lambda store: api.append_to_cube(_seed(5), CUBE, store),
    "extend": lambda store: api.extend_cube({"more": _seed(0)[["x", "p"]].assign(v3=1)}, CUBE, store),
    "update": lambda store: update_dataset_from_dataframes([_seed(5)], store, "cube++seed"),
    "remove": lambda store: api.remove_partitions(CUBE, store, api.C("p") == 0),
    "stats": lambda store: api.collect_stats(CUBE, store),
    "copy": lambda store: api.copy_cube(CUBE, store, Same.of(memory()), renamed_cube_prefix="copy"),
    "clean": lambda store: api.cleanup_cube(CUBE, store),
    "collect": lambda store: garbage_collect_dataset(dataset_uuid="cube++seed", store=store),
    "delete": lambda store: api.delete_cube(CUBE, store),
}


def _seed(start: int) -> pd.DataFrame:
    return pd.DataFrame({"x": range(start, start + 4), "p": [0, 0, 1, 1], "i1": [1, 2, 1, 2], "v1": "a"})


def _original() -> dict[str, bytes]:
    store = memory()
    factory = Same.of(store)
    api.build_cube({"seed": _seed(0), "extra": _seed(0)[["x", "p"]].assign(v2=0.5)}, CUBE, factory)
    store_dataframes_as_dataset(dfs=[_seed(0)], store=factory, dataset_uuid="other")
    return snapshot(factory)


ORIGINAL = _original()
HEADER = "cube++seed.by-dataset-metadata.json"
#: what is said of content that is no damage
DOCUMENTED = {NotImplementedError: ["metadata version"], RuntimeError: ["Column(s) to index missing"]}
DOCUMENTED[ValueError] = [""]  # the datasets do not make a cube
KINDS = {
    "header": lambda key: key == HEADER,
    "schema": lambda key: key == "cube++seed/table/_common_metadata",
    "index": lambda key: key.startswith("cube++seed/indices/i1/"),
    "data": lambda key: key.startswith("cube++seed/table/p=0/"),
}

HOSTILE = ["..", "../other/table/x.parquet", "/etc/passwd", "other/table/x.parquet", "cube++seed/../x", ""]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def broken_bytes(draw, data: bytes) -> bytes:
    """Bytes with some places changed, cut out, doubled or put in."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.integers(0, 16))
        old = data[at : at + length]
        new = draw(st.sampled_from([b"", old, old * 2]) | st.binary(max_size=16))
        data = data[:at] + new + data[at + length :]
    return data


@st.composite
def broken_json(draw) -> object:
    """The header with one entry, at any depth, replaced, renamed, removed or added."""
    content = json.loads(ORIGINAL[HEADER])
    node = content
    while True:
        key = draw(st.sampled_from(sorted(node)))
        if isinstance(node[key], dict) and node[key] and draw(st.booleans()):
            node = node[key]
            continue
        change = draw(st.sampled_from(["replace", "rename", "remove", "add"]))
        if change == "replace":
            node[key] = draw(json_values)
        elif change == "rename":
            node[draw(st.text(max_size=8) | st.just("../" + key))] = node.pop(key)
        elif change == "remove":
            del node[key]
        else:
            node[draw(st.text(max_size=8))] = draw(json_values)
        return content


def _some(share: float):
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=max(1, int(INPUTS * share)), suppress_health_check=quiet, deadline=None)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@_some(0.15)
def test_broken_bytes(kind, data):
    [key] = [key for key in ORIGINAL if KINDS[kind](key)]
    _try({key: data.draw(broken_bytes(ORIGINAL[key]))}, data.draw(st.sampled_from(sorted(ACTIONS))))


@given(content=broken_json(), action=st.sampled_from(sorted(ACTIONS)))
@_some(0.2)
def test_headers_with_other_content(content, action):
    _try({HEADER: json.dumps(content).encode()}, action)


@given(content=broken_json(), action=st.sampled_from(sorted(ACTIONS)), data=st.data())
@_some(0.2)
def test_packed_headers(content, action, data):
    packed = zstandard.compress(msgpack.packb(content, default=str))
    if data.draw(st.booleans()):
        packed = data.draw(broken_bytes(packed))
    _try({HEADER: None, HEADER.replace("json", "msgpack.zstd"): packed}, action)


def _try(changes: dict[str, bytes | None], action: str) -> None:
    store = filled({key: content for key, content in (ORIGINAL | changes).items() if content is not None})
    watched = CountingStore(store)
    try:
        ACTIONS[action](Same.of(watched))
    except KartothekCubeError:
        pass
    except (ValueError, NotImplementedError, RuntimeError) as error:
        if not any(text in str(error) for text in DOCUMENTED.get(type(error), ())):
            raise
    touched = {key for method, key in watched.log if method in ("get", "open", "put", "delete")}
    assert [key for key in touched if not key.startswith("cube++") or ".." in key.split("/")] == []
    for key, content in ORIGINAL.items():
        if not key.startswith("cube++"):
            assert store.get(key) == content


def test_a_packed_header_that_would_fill_the_memory():
    bomb = zstandard.compress(b"\x00" * (1 << 30))
    assert len(bomb) < 1 << 17
    store = memory()
    store.put(HEADER.replace("json", "msgpack.zstd"), bomb)
    with pytest.raises(KartothekCubeError, match="allowed"):
        read_table("cube++seed", Same.of(store))


@pytest.mark.slow("2,000 broken inputs")
def test_many_inputs():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", __file__]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "KARTOTHEK_CUBE_INPUTS": "2000"}, check=True)
