"""Contracts: rules of rows and of writes, in all writes and in verifications; malformed contracts."""

import decimal
import pickle
import sys
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.api import cube as api
from kartothek_cube.cli import cli
from kartothek_cube.core import contract
from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.contract import CellsInSeed, Contract, Fresh, InRange, NotNull, OneOf, RowCount
from kartothek_cube.core.errors import ConcurrentWriteError, ContractViolationError, CorruptDatasetError
from kartothek_cube.core.naming import CONTRACT
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io import eager
from tests.support.cubes import memory
from tests.support.dataset_facades import FACADES

CUBE = api.Cube(["x"], ["p"], "cube")
RULES = [NotNull("v"), InRange("v", 0, 10)]


def seed(x, v, p=0):
    return pd.DataFrame({"x": x, "p": p, "v": np.asarray(v, dtype=float)})


def extra(x, w="a", p=0):
    return pd.DataFrame({"x": x, "p": p, "w": w})


def contracted(store, rules=RULES, name="seed"):
    api.build_cube({"seed": seed([1, 2], [1, 2]), "extra": extra([1])}, CUBE, store)
    api.set_contract(CUBE, store, name, rules)
    return store


def refused(write, store, rule, count=1):
    """The write breaks a rule, and leaves the store as it was."""
    before = open_blobs(store).list("")
    with pytest.raises(ContractViolationError) as raised:
        write()
    assert (raised.value.rule, raised.value.count) == (str(rule), count), raised.value
    assert pickle.loads(pickle.dumps(raised.value)).examples == raised.value.examples
    assert open_blobs(store).list("") == before
    return raised.value


def refuse_writes(store, wrong, rule):
    for write in (
        lambda: api.append_to_cube(wrong, CUBE, store),
        lambda: api.update_cube(wrong, CUBE, store, "p == 0", "seed"),
        lambda: api.merge_into_cube(wrong, CUBE, store),
        lambda: eager.update_dataset_from_dataframes([wrong], store, "cube++seed"),
    ):
        refused(write, store, rule)


# -- rules of rows against pandas ----------------------------------------------------------------------------

FLOATS = st.lists(st.none() | st.floats(-3, 3, width=16) | st.sampled_from([np.nan, -0.0, 0.0]), max_size=8)
TEXTS = st.lists(st.none() | st.sampled_from(["", "a", "A1", "ab\n", "ABC", "ÄB"]), max_size=8)


def broken(rule, values):
    table = pa.table({"c": values})
    return sum(found.n_violations for found in Contract((rule,)).find_in_rows(table, []))


@given(FLOATS, st.sampled_from([-0.0, 0, 1, 1.5]))
def test_rules_of_numbers(values, limit):
    series = pd.Series(values, dtype="float64")
    assert broken(NotNull("c"), pa.array(values, pa.float64())) == series.isna().sum()
    for rule, meets in (
        (InRange("c", limit), series >= limit),
        (InRange("c", -1, limit), series.between(-1, limit)),
        (OneOf("c", [limit, 2]), series.isin([limit, 2])),
    ):
        expected = (~meets & series.notna()).sum()
        assert broken(rule, pa.array(values, pa.float64())) == expected
        assert broken(rule, pa.array(values, pa.float64()).cast(pa.float32())) == expected


@given(TEXTS, st.booleans())
def test_rules_of_text(values, is_category):
    series = pd.Series(values, dtype="object")
    column = pa.array(values, pa.string())
    column = column.dictionary_encode() if is_category else column
    assert broken(NotNull("c"), column) == series.isna().sum()
    for rule, meets in (
        (contract.Matches("c", "[A-Z]|[A-Z]{3}"), series.str.fullmatch("[A-Z]|[A-Z]{3}")),
        (OneOf("c", ["", "a"]), series.isin(["", "a"])),
        (InRange("c", "A", "a"), series.dropna().between("A", "a").reindex(series.index)),
    ):
        assert broken(rule, column) == (~meets[series.notna()].astype(bool)).sum()


DAY, HOUR_OF_BERLIN = datetime(2024, 1, 1), pa.timestamp("us", "Europe/Berlin")
LIMITS = InRange("c", 0.1, decimal.Decimal("0.3"))
#: types of columns that fit, and that do not
FITTING = [
    *((pa.float32(), [1.0]), ("int64", pa.nulls(2)), (pa.date32(), [DAY.date()]), (str, ["a"])),
    *((str, pa.array(["a"]).dictionary_encode()), (pa.list_(pa.float32()), [[1.0]])),
    ("datetime64[s]", pa.array([DAY], pa.timestamp("ns"))),
    ("timestamp[us, tz=UTC]", pa.array([0], pa.timestamp("ns", "UTC"))),
]


UNITS = ("D", "s", "us", "ns")


@pytest.mark.parametrize(
    "rule, values, expected",
    [
        (InRange("c", date(2024, 1, 2)), pa.array([date(2024, 1, 1), None], pa.date32()), 1),
        (InRange("c", "2024-01-02"), [DAY, datetime(2024, 1, 2)], 1),
        (InRange("c", DAY.replace(tzinfo=UTC)), pa.array([DAY, datetime(2023, 1, 1)], HOUR_OF_BERLIN), 1),
        (LIMITS, list(map(decimal.Decimal, ["0.1", "0.30", "0.31"])), 1),
        (OneOf("c", [decimal.Decimal("0.1")]), list(map(decimal.Decimal, ["0.10", "0.20"])), 1),
        (InRange("c", max=2**53), [2**53 + 1, 2**53], 1),
        (OneOf("c", [True]), [True, False, None], 1),
        *((contract.HasType("c", dtype), values, 0) for dtype, values in FITTING),
        (contract.HasType("c", "int64"), [1.0], 1),
        (contract.HasType("c", "timestamp[us, tz=UTC]"), pa.array([0], pa.timestamp("ns")), 1),
        (NotNull("c"), pa.nulls(2), 2),
        (NotNull("c"), pa.array([1.0, float("nan")]).dictionary_encode(), 1),
        (NotNull("c"), pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None])), 1),
        (InRange("c", 0), pa.nulls(2), 0),
        *((InRange("c", np.datetime64("2024-01-02", unit)), [DAY], 1) for unit in UNITS),
    ],
)
def test_types_of_rules(rule, values, expected):
    stored = Contract.of("u", {CONTRACT: Contract.make([rule]).stored})
    assert stored.rules == (rule,)
    values = values if isinstance(values, pa.Array) else pa.array(values)
    assert broken(stored.rules[0], values) == expected


WRONG_VALUES = [
    *(lambda: InRange("c"), lambda: InRange("c", 2, 1), lambda: OneOf("c", [None]), lambda: OneOf("c", [])),
    *(lambda: contract.Matches("c", "["), lambda: RowCount(-1), lambda: RowCount(2, 1)),
    # JSON has no such numbers
    *(lambda: InRange("c", 0, float("inf")), lambda: InRange("c", float("-inf"), 0)),
    *(lambda: OneOf("c", [1.0, float("inf")]), lambda: OneOf("c", [float("nan")])),
    *(lambda: Fresh("c", timedelta(-1)), lambda: Fresh("c", float("nan")), lambda: Fresh("c", float("inf"))),
    # a limit that is null is not the same as none
    *(lambda: InRange("c", 0, np.datetime64("NaT", "ns")), lambda: InRange("c", pd.NaT)),
    *(lambda: InRange("c", pa.scalar(None, pa.int64()), 1), lambda: OneOf("c", ["a", pd.NaT])),
]
WRONG_TYPES = [
    *(lambda: InRange("c", None, [1]), lambda: OneOf("c", [b"x"]), lambda: Fresh("c", "1 day")),
    *(lambda: NotNull(5), lambda: NotNull(None)),
    *(partial(contract.HasType, "c", dtype) for dtype in ("int33", "category", 64)),
    *(partial(Contract.make, rules) for rules in ([contract.ContractRule()], ["NotNull"], "NotNull")),
]


@pytest.mark.parametrize(
    "error, make", [*product([ValueError], WRONG_VALUES), *product([TypeError], WRONG_TYPES)]
)
def test_wrong_rules(make, error):
    with pytest.raises(error):
        make()


NOT_NULL = {"rule": "NotNull", "column": "v"}


@pytest.mark.parametrize(
    "stored",
    [
        *(1, "x", NOT_NULL, [1], [{}], [{"rule": "Nothing"}], [{"rule": ["NotNull"]}], [{"rule": "NotNull"}]),
        *([{**NOT_NULL, "column": 1}], [{**NOT_NULL, "checked": "no"}], [{**NOT_NULL, "more": 1}]),
        [{"rule": "InRange", "column": "v", "min": {}}],
        [{"rule": "Fresh", "column": "v", "max_age": 1e300}],
        [{"rule": "RowCount", "min": 1.5}],
    ],
)
def test_malformed_contracts_are_refused_and_can_be_replaced(stored):
    store = contracted(memory(), [])
    commit(open_blobs(store), ChangeSet("cube++seed", metadata={CONTRACT: stored}))
    with pytest.raises(CorruptDatasetError, match="set_contract replaces it"):
        api.append_to_cube(seed([3], [3]), CUBE, store)
    assert [problem.kind for problem in api.verify_cube(CUBE, store).problems] == ["contract"]
    api.set_contract(CUBE, store, "seed", RULES)
    api.append_to_cube(seed([3], [3]), CUBE, store)


# -- writes --------------------------------------------------------------------------------------------------


def test_all_kinds_of_writes_are_checked():
    store = contracted(memory())
    rule, wrong = RULES[1], seed([1], [99])
    both = {"seed": wrong, "extra": extra([1])}
    refuse_writes(store, wrong, rule)
    refused(lambda: api.build_cube(both, CUBE, store, overwrite=True), store, rule)
    # what a merge leaves out keeps its value, or is null
    api.merge_into_cube(wrong[["x", "p"]], CUBE, store)
    refused(lambda: api.merge_into_cube(seed([7], [7])[["x", "p"]], CUBE, store), store, RULES[0])
    api.set_contract(CUBE, store, "extra", [OneOf("w", ["a", "b"])])
    compute = lambda df: df[["x", "p"]].assign(w="c")  # noqa: E731
    other, rule = {"extra": extra([1], "c")}, OneOf("w", ["a", "b"])
    refused(lambda: api.extend_cube(other, CUBE, store, overwrite=True), store, rule)
    refused(lambda: api.compute_dataset(compute, CUBE, store, "extra"), store, rule, 2)


def test_overwrites_rollbacks_and_schemas_keep_contracts():
    store = contracted(memory())
    version = api.list_cube_history(CUBE, store)[0].version
    both = {"seed": seed([1], [1]), "extra": extra([1])}
    api.build_cube(both, CUBE, store, overwrite=True)
    api.rollback_cube(CUBE, store, version)
    assert api.list_contract(CUBE, store, "seed") == RULES
    assert api.list_contract(CUBE, store, "extra") == []
    with pytest.raises(ValueError, match="named by the contract"):
        api.update_schema(CUBE, store, "seed", rename={"v": "u"})
    api.extend_cube({"more": extra([1]).rename(columns={"w": "u"})}, CUBE, store)
    assert api.list_contract(CUBE, store, "more") == []
    state = api.set_contract(CUBE, store, "seed", [])
    assert CONTRACT not in state.metadata


def test_rules_of_whole_writes():
    store = contracted(memory(), [contract.UniqueCells(), RowCount(np.int64(2), np.int64(3))])
    parts = [seed([5, 6], [5, 6], p=1), seed([6], [7], p=1)]
    append_parts = partial(api.append_to_cube__iter, parts, CUBE, store, ["seed"])
    error = refused(append_parts, store, contract.UniqueCells(), 2)
    assert error.examples[0] == {"p": 1, "x": 6}
    error = refused(lambda: api.append_to_cube(seed([3, 4], [3, 4]), CUBE, store), store, RowCount(2, 3), 4)
    assert error.examples == ({"p": 0, "rows": 4},)
    delete = seed([1], [1]).assign(gone=True)
    refused(lambda: api.merge_into_cube(delete, CUBE, store, delete_column="gone"), store, RowCount(2, 3))
    refused(lambda: api.append_to_cube(seed([3], [3], p=1), CUBE, store), store, RowCount(2, 3))
    # newer versions of cells are no more cells
    api.append_to_cube(seed([1, 2, 3], [3, 4, 5]), CUBE, store)
    api.merge_into_cube(seed([3], [6]), CUBE, store)
    api.update_cube(seed([7, 8], [3, 4]), CUBE, store, "p == 0", "seed")
    refused(lambda: api.update_cube(seed([7], [3]), CUBE, store, "p == 0", "seed"), store, RowCount(2, 3))


@pytest.mark.parametrize("name", FACADES)
def test_writes_of_single_datasets_check_rules_of_whole_writes(name, tmp_path):
    facade, store = FACADES[name](), f"hfs://{tmp_path}"
    contracted(store, [contract.UniqueCells(), RowCount(np.int64(2), np.int64(3))])
    update = partial(facade.update, store, uuid="cube++seed")
    repeated = [seed([5, 6], [5, 6], p=1), seed([6], [7], p=1)]
    refused(lambda: update(repeated), store, contract.UniqueCells(), 2)
    refused(lambda: update([seed([3], [3]), seed([4], [4])]), store, RowCount(2, 3), 4)
    update([seed([3], [3]), seed([1, 2], [3, 4], p=1)])
    keys = {"partition_on": ["p"], "secondary_indices": ["x"], "overwrite": True}
    refused(lambda: facade.store(store, [seed([3], [3])], "cube++seed", **keys), store, RowCount(2, 3))
    api.set_contract(CUBE, store, "extra", [CellsInSeed()], check_existing=False)
    refused(lambda: facade.update(store, [extra([9])], "cube++extra"), store, CellsInSeed())
    facade.update(store, [extra([3])], "cube++extra")


def test_files_that_a_user_has_written_are_checked_and_left_to_the_user():
    store = contracted(memory(), [RowCount(2, 3)])
    written = [eager.write_single_partition(store, "cube++seed", seed([x], [x])) for x in (3, 4)]
    publish = partial(eager.commit_dataset, store=store, dataset_uuid="cube++seed")
    refused(lambda: publish(new_partitions=written), store, RowCount(2, 3), 4)
    publish(new_partitions=written[:1])
    staged = eager.update_dataset_from_dataframes([seed([3], [5])], store, "cube++seed", publish=False)
    api.append_to_cube(seed([2], [7]), CUBE, store)
    with pytest.raises(ConcurrentWriteError, match="p=0"):
        api.publish_staged(staged, store)


@pytest.mark.parametrize("compression", ["snappy", "lz4"], ids=["as it is", "rewritten"])
def test_an_adopted_table_is_checked(tmp_path, compression):
    rules = [OneOf("w", ["a"]), CellsInSeed()]
    store = contracted(memory(), rules, "extra")

    def adopt(frame):
        (tmp_path / "p=0").mkdir(exist_ok=True)
        table = pa.table({"x": frame["x"], "w": pa.array(frame["w"], pa.string())})
        pq.write_table(table, tmp_path / "p=0" / "a.parquet", compression=compression)
        return api.adopt_dataset(tmp_path, CUBE, store, "extra", overwrite=True)

    refused(lambda: adopt(extra([1, 2], ["a", "b"])), store, rules[0])
    refused(lambda: adopt(extra([1, 2, 3])), store, CellsInSeed())
    assert adopt(extra([1, 2])).n_rewritten == (compression == "lz4")
    assert api.list_contract(CUBE, store, "extra") == rules
    assert api.verify_cube(CUBE, store).ok


def test_cells_are_in_the_seed():
    store = contracted(memory(), [CellsInSeed()], "extra")
    refused(lambda: api.append_to_cube({"extra": extra([2, 9])}, CUBE, store), store, CellsInSeed())
    refused(lambda: api.append_to_cube({"extra": extra([2], p=1)}, CUBE, store), store, CellsInSeed())
    # the seed of the same write counts
    api.append_to_cube({"seed": seed([9], [9]), "extra": extra([2, 9])}, CUBE, store)
    both = {"seed": seed([5], [5]), "extra": extra([1])}
    refused(lambda: api.update_cube(both, CUBE, store, "all", ["seed", "extra"]), store, CellsInSeed())


def test_rows_are_fresh(monkeypatch):
    store = memory()
    now = datetime(2024, 1, 2)
    frame = seed([1], [1]).assign(t=now)
    api.build_cube(frame, CUBE, store)
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now + timedelta(hours=1))
    rule = Fresh("t", timedelta(hours=2))
    api.set_contract(CUBE, store, "seed", [rule])
    old = frame.assign(x=[3], t=now - timedelta(days=1))
    none = frame.assign(t=pd.Series([None], dtype="M8[us]"))
    error = refused(lambda: api.append_to_cube(old, CUBE, store), store, rule)
    assert "newest time: 2024-01-01 00:00:00+00:00, 1 days 01:00:00 ago" in str(error)
    refused(lambda: api.append_to_cube(none, CUBE, store), store, rule)
    api.append_to_cube(frame.assign(x=[4]), CUBE, store)
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now + timedelta(days=2))
    assert [problem.kind for problem in api.verify_cube(CUBE, store).problems] == ["contract"]


def test_publication_checks_again_what_the_seed_and_the_time_decide(monkeypatch):
    store, now, rules = memory(), datetime(2024, 1, 2), [CellsInSeed(), Fresh("t", 60)]
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now)
    rows = extra([1]).assign(t=now)
    api.build_cube({"seed": seed([1, 2], [1, 2]), "extra": rows}, CUBE, store)
    api.set_contract(CUBE, store, "extra", rules)
    more = rows.assign(x=2)
    of_dataset = eager.update_dataset_from_dataframes([more], store, "cube++extra", publish=False)
    of_cube = api.append_to_cube({"extra": more}, CUBE, store, publish=False)
    both = {"seed": seed([3], [3]), "extra": rows.assign(x=3)}
    of_both = api.append_to_cube(both, CUBE, store, publish=False)
    published = api.append_to_cube({"extra": more}, CUBE, store, publish=False)
    # the cells have other files now, and are still in the seed
    api.append_to_cube(seed([2], [9]), CUBE, store)
    api.compact_cube(CUBE, store)
    api.publish_staged(published, store)
    api.delete_rows(CUBE, store, "x == 2", "seed")
    for staged in (of_dataset, of_cube):
        refused(lambda staged=staged: api.publish_staged(staged, store), store, CellsInSeed())
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now + timedelta(minutes=2))
    refused(lambda: api.publish_staged(of_both, store), store, rules[1])
    # a deletion checks nothing; to publish again has no effect
    api.publish_staged(api.delete_rows(CUBE, store, "x == 1", "extra", publish=False), store)
    api.publish_staged(published, store)


def test_each_rule_has_the_newest_time_of_its_own_column(monkeypatch):
    store, now = memory(), datetime(2024, 1, 2)
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now)
    api.build_cube(seed([1], [1]).assign(old=now - timedelta(days=9), new=now), CUBE, store)
    for columns in (["new", "old"], ["old", "new"]):
        with pytest.raises(ContractViolationError, match=r"Fresh\('old'"):
            api.set_contract(CUBE, store, "seed", [Fresh(c, timedelta(hours=1)) for c in columns])


# -- functions of the user ---------------------------------------------------------------------------------


def is_small(df):
    return df["v"] < 50


def raise_for_large(df):
    if not is_small(df).all():
        raise AssertionError("large")
    return df


@pytest.mark.parametrize("check", [is_small, raise_for_large, lambda df: is_small(df).all()])
def test_every_facade_checks_rows(driver, store_factory, check):
    contracted(store_factory, rules := [NotNull("v"), InRange("v", 0, 100)])
    write = partial(driver.append_to_cube, cube=CUBE, store=store_factory)
    text = r"InRange\('v', 0, 100\), which 1 of 2 rows breaks, such as p=0, x=4, v=-1"
    with pytest.raises(Exception, match=text):
        write(data=seed([3, 4], [3, -1]))
    with api.check_rows(check, "cube++seed"):
        write(data=seed([3], [3]))
        with pytest.raises(Exception, match=r"has the rule check_rows.*, which \d of 2 rows break"):
            write(data=seed([4, 5], [4, 99]))
    write(data=seed([6], [99]))
    assert api.list_contract(CUBE, store_factory, "seed") == rules
    assert api.query_cube_df(CUBE, store_factory)["v"].tolist() == [1, 2, 3, 99]


def test_all_kinds_of_writes_are_checked_by_functions(tmp_path):
    store, rule = memory(), contract.RowCheck(is_small)
    api.build_cube(seed([1, 2], [1, 2]), CUBE, store)
    wrong = seed([1], [99])
    with api.check_rows(is_small, "cube++seed"):
        refuse_writes(store, wrong, rule)
        refused(lambda: api.build_cube(wrong, CUBE, store, overwrite=True), store, rule)
        refused(lambda: eager.write_single_partition(store, "cube++seed", wrong), store, rule)
        refused(lambda: api.append_to_cube(wrong, CUBE, store, publish=False), store, rule)
        wrong.to_parquet(tmp_path / "a.parquet", index=False)
        adopt = partial(api.adopt_dataset, tmp_path, CUBE, store, "seed", overwrite=True)
        refused(adopt, store, rule)
        api.append_to_cube(seed([3], [3], p=1), CUBE, store)

    def is_valid(df):
        return df["w2"] < 50

    with api.check_rows(is_valid, "cube++copy"):
        copy = partial(api.compute_dataset, cube=CUBE, store=store, into="copy", changed_since=None)
        # the first call creates the dataset, the second replaces its files
        copy(lambda df: df[["x", "p"]].assign(w2=1))
        refused(lambda: copy(lambda df: df[["x", "p"]].assign(w2=99)), store, contract.RowCheck(is_valid), 2)
    api.append_to_cube(seed([4], [99]), CUBE, store)
    with api.check_rows(is_small, "cube++seed"):
        # these write no rows of a user
        api.delete_rows(CUBE, store, "x == 1")
        api.compact_cube(CUBE, store)
        hook = api.check_rows(lambda df: {}[0], "cube++seed")
        with pytest.raises(ContractViolationError, match="rows break: KeyError: 0") as raised:
            api.append_to_cube(seed([5, 6], [5, 6]), CUBE, store)
        assert isinstance(raised.value.__cause__, KeyError)
        hook.remove()
        api.extend_cube({"extra": extra([9])}, CUBE, store)
    assert api.verify_cube(CUBE, store).ok


ALLOWED = [lambda df: None, lambda df: df, lambda df: df["v"].convert_dtypes() < 50]
REFUSED = [lambda df: np.array([True, False]), lambda df: np.False_, lambda df: np.array([True])]
REFUSED += [lambda df: df["v"].gt(5).astype("boolean")]


@pytest.mark.parametrize("refuses, check", [*product([False], ALLOWED), *product([True], REFUSED)])
def test_results_of_checks(check, refuses):
    found = list(Contract((contract.RowCheck(check),)).find_in_rows(pa.table({"v": [1.0, None]}), ()))
    assert bool(found) == refuses


def test_wrong_checks():
    for arguments in ((5, "cube++seed"), (is_small, 5)):
        with pytest.raises(TypeError):
            api.check_rows(*arguments)
    with pytest.raises(TypeError, match="A contract is a list of rules"):
        Contract.make([contract.RowCheck(is_small)])
    assert Contract.make(NotNull("c")) == Contract.make([NotNull("c")])


# -- stored rows ---------------------------------------------------------------------------------------------


def test_a_new_rule_is_checked_against_stored_rows():
    store, strict = contracted(memory()), InRange("v", 0, 1)
    refused(lambda: api.set_contract(CUBE, store, "seed", [strict]), store, strict)
    api.set_contract(CUBE, store, "seed", [*RULES, strict], check_existing=False)
    assert [rule.checked for rule in api.list_contract(CUBE, store, "seed")] == [True, True, False]
    [problem] = api.verify_cube(CUBE, store).problems
    assert "1 of 2 rows breaks, such as p=0, x=2, v=2.0; stored rows were not checked" in problem.message
    # what newer versions of cells hide does not count
    api.append_to_cube(seed([2], [1]), CUBE, store)
    assert api.verify_cube(CUBE, store).ok
    api.set_contract(CUBE, store, "seed", [strict])
    assert api.list_contract(CUBE, store, "seed") == [strict]


def test_verify_finds_rows_of_other_writers(monkeypatch):
    store = contracted(memory(), [*RULES, RowCount(1, 4)])
    api.set_contract(CUBE, store, "extra", [CellsInSeed()])
    with monkeypatch.context() as patch:
        # they keep the metadata
        patch.setattr("kartothek_cube.core.contract.Contract.of", lambda *_: Contract())
        patch.setattr("kartothek_cube.core.commit.change.UnchangedMetadata.check", lambda *_: None)
        for p in (0, 1):
            data = {"seed": seed([3, 4, 5], [-1, 11, None], p=p), "extra": extra([1, 3, 9], p=p)}
            api.append_to_cube(data, CUBE, store)
    problems = api.verify_cube(CUBE, store).problems
    messages = [p.message.partition(", such as")[0] for p in problems if p.kind == "contract"]
    assert messages == [
        "Dataset 'cube++extra' has the rule CellsInSeed(), which 3 of 6 rows break",
        "Dataset 'cube++seed' has the rule NotNull('v'), which 2 of 8 rows break",
        "Dataset 'cube++seed' has the rule InRange('v', 0, 10), which 4 of 8 rows break",
        "Dataset 'cube++seed' has the rule RowCount(1, 4), which 5 of 8 rows break",
    ]
    assert api.verify_cube(CUBE, store, deep=False).ok


@pytest.mark.parametrize(
    "name, rules, text",
    [
        ("sed", RULES, "dataset sed"),
        ("seed", [NotNull("u")], "unknown column u"),
        ("seed", [contract.Matches("v", "a")], "needs text"),
        ("seed", [InRange("v", "a")], "v"),
        ("seed", [Fresh("v", 60)], "needs timestamps or dates"),
        ("seed", [CellsInSeed(checked=False)], "of other datasets than the seed"),
    ],
)
def test_rules_that_do_not_fit_are_refused(name, rules, text):
    store = contracted(memory())
    with pytest.raises((TypeError, ValueError), match=text):
        api.set_contract(CUBE, store, name, rules)
    assert api.list_contract(CUBE, store, "seed") == RULES


# -- concurrent changes --------------------------------------------------------------------------------------


def test_a_write_that_was_planned_before_is_refused():
    store = contracted(memory(), [])
    written = eager.write_single_partition(store, "cube++seed", seed([3], [99]))
    staged = api.append_to_cube(seed([5], [99]), CUBE, store, publish=False)

    def parts():
        yield seed([4], [99])
        api.set_contract(CUBE, store, "seed", RULES)

    for write in (
        lambda: api.append_to_cube__iter(parts(), CUBE, store, ["seed"]),
        lambda: eager.commit_dataset(store=store, dataset_uuid="cube++seed", new_partitions=[written]),
        lambda: api.publish_staged(staged, store),
    ):
        with pytest.raises(ConcurrentWriteError, match="changed the contract"):
            write()
    assert api.verify_cube(CUBE, store).ok


def test_a_write_without_a_contract_takes_no_more_calls_for_more_partitions():
    def count(n_partitions):
        store, calls = memory(), []
        frame = seed(range(n_partitions), 1, p=range(n_partitions))
        api.build_cube(seed([0], [1]), CUBE, store)
        sys.setprofile(lambda frame, *_: calls.append(1) if "contract" in frame.f_code.co_name else None)
        try:
            api.append_to_cube(frame, CUBE, store)
        finally:
            sys.setprofile(None)
        return len(calls)

    assert count(1) == count(40) < 12


def test_the_command_line_shows_contracts(tmp_path):
    store = f"hfs://{tmp_path}"
    contracted(store, RULES[:1])
    api.set_contract(CUBE, store, "seed", RULES, check_existing=False)
    output = CliRunner().invoke(cli, ["--store", store, "cube", "info"], catch_exceptions=False).output
    assert "Contract:\n  - NotNull('v')\n  - InRange('v', 0, 10), not checked on older rows\n" in output
