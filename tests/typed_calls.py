"""Calls of users, right and wrong ones, for mypy (``make lint``): an ``ignore`` without error is an error."""

from kartothek_cube import Cube, append_to_cube, open_cube
from kartothek_cube.api.cube import month, publish_staged


def make_calls() -> None:
    """Call the short names; nothing runs this function."""
    Cube(dimension_columns=5, partition_columns="p", uuid_prefix="c")  # type: ignore[arg-type]
    Cube(["x"], ["p"], uuid_prefix=5)  # type: ignore[arg-type]
    Cube(["x"], [month(5)], "c")  # type: ignore[arg-type]
    Cube(["x"], [month("x"), "p"], "c")
    cube = Cube("x", ["p"], "c", index_columns={"i"})
    append_to_cube(None, cube, "hfs:///c", schema_mode="merge")
    append_to_cube(None, cube, "hfs:///c", schema_mode="union")  # type: ignore[arg-type]
    staged = append_to_cube(None, cube, "hfs:///c", publish=False)
    publish_staged(staged, "hfs:///c")
    publish_staged(5, "hfs:///c")  # type: ignore[arg-type]
    open_cube("c", "hfs:///c").query(as_of=staged)
    open_cube("c", "hfs:///c").append(None, schema_mode="merge")
    open_cube("c", "hfs:///c").append(None, schema_mode="union")  # type: ignore[arg-type]
    open_cube("c", "hfs:///c").query("x > 1", columns=["x"], by="p").to_pandas(dtype_backend="pyarrow")
    open_cube("c", "hfs:///c").query(conditions="x > 1")  # type: ignore[call-arg]
    open_cube("c", "hfs:///c").query(columns=5)  # type: ignore[arg-type]
