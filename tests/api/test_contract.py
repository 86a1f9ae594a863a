"""Names, order and defaults of parameters are those that users of kartothek know."""

import pytest

from tests.support.contract import MODULES, check_name, parameters_differ, star_exports

NAMES = [(module, name) for module in MODULES for name in MODULES[module]["names"]]


@pytest.mark.parametrize(
    "module, name", NAMES, ids=[f"{m.removeprefix('kartothek_cube.')}.{n}" for m, n in NAMES]
)
def test_name(module, name):
    assert "\n".join(check_name(module, name)) == ""


@pytest.mark.parametrize("module", MODULES)
def test_star_import(module):
    assert [name for name in star_exports(module) if (module, name) in NAMES] == []


def test_no_module_is_forgotten():
    expected = """
    api.consistency api.cube api.dataset api.discover api.serialization core core.common_metadata
    core.cube core.cube.conditions core.cube.constants core.cube.cube core.dataset core.factory
    core.index core.naming core.partition core.typing core.urlencode core.utils core.uuid io.dask.bag
    io.dask.bag_cube io.dask.dataframe io.dask.dataframe_cube io.dask.delayed io.eager io.eager_cube
    io.iter io_components.cube.write io_components.metapartition serialization serialization._csv
    serialization._generic serialization._parquet utils.converters utils.ktk_adapters
    utils.predicate_converter utils.store
    """
    assert sorted(MODULES) == [f"kartothek_cube.{name}" for name in expected.split()]


CONTRACT = [{"name": "store", "required": True}, {"name": "columns", "default": "None"}]


def test_parameters_by_keyword_may_be_added_and_missing_keywords_are_found():
    def function(store, columns=None, *, limit=10, **more): ...

    assert parameters_differ(CONTRACT, function) == []
    assert parameters_differ([{"name": "kwargs", "kind": "var_keyword"}], lambda x: None) != []
    assert parameters_differ([{"name": "kwargs", "kind": "var_keyword"}], lambda **kw: None) == []


@pytest.mark.parametrize(
    "function, why",
    [
        (
            lambda columns=None, store=None: None,
            "parameters are ['columns', 'store'] instead of ['store', 'columns']",
        ),
        (lambda store: None, "parameters are ['store'] instead"),
        (lambda store, columns=None, limit=1: None, "parameters are ['store', 'columns', 'limit'] instead"),
        (lambda store, *, columns=None: None, "parameters are ['store'] instead"),
        (lambda store, columns=(): None, "default of columns is () instead of None"),
        (lambda store, columns: None, "default of columns is missing instead of None"),
        (lambda store=None, columns=None: None, "default of store is None instead of missing"),
        (lambda store, columns=None, *, limit: None, "parameter limit is new and has no default"),
    ],
)
def test_what_differs_is_found(function, why):
    assert [line for line in parameters_differ(CONTRACT, function) if line.startswith(why)]
