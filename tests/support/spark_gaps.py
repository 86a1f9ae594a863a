"""Which tests of behaviour do not apply to Spark.

To be used by tests/conftest.py, which must not import pyspark.
"""

_WIDTH = (
    "columns of Spark have the types of the schema, which knows no narrow numbers, and no nulls as a type"
)
_BACKEND = "results are DataFrames of Spark: pandas and its types come later, and have no argument"
_MEMORY = "the test looks at a store in the memory of this process, where executors see nothing"

#: test or module -> reason, and the cases that it holds for (none: all of them)
GAPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "test_types_of_payload_where_a_partner_is_missing": (_WIDTH, ("float32", "null")),
    "test_types_do_not_change_because_another_partition_is_empty": (_WIDTH, ()),
    "test_all_frames_have_the_widest_type_whatever_is_asked_for": (_WIDTH, ()),
    "test_types_of_a_backend_are_those_of_the_schema": (_BACKEND, ()),
    "test_unknown_backend": (_BACKEND, ()),
    "test_frames_of_all_facades_go_back_in": (_BACKEND, ("numpy_nullable", "pyarrow")),
    "test_a_failed_copy_says_so_and_leaves_no_header_that_it_wrote": (_MEMORY, ()),
    "test_query_planning": (_MEMORY, ()),
    "test_planning_example": (_MEMORY, ()),
    "test_files_become_one": (_MEMORY, ()),
    "test_rows_are_deleted_from_all_datasets": (_MEMORY, ()),
    "test_all_facades_find_the_same": (_MEMORY, ()),
}


def applies(nodeid: str, store_kind: str | None) -> bool:
    """Whether a test makes sense for Spark: a store that executors can open, no reason against it."""
    module, _, rest = nodeid.partition("::")
    test, _, case = rest.rstrip("]").partition("[")
    for name in (module.rpartition("/")[2].removesuffix(".py"), test):
        _, cases = GAPS.get(name, ("", None))
        if cases is not None and (not cases or case.endswith(tuple(f"-{one}" for one in cases))):
            return False
    return store_kind in ("local", None)
