"""Converters of arguments, re-exported from ``core.arguments``."""

from __future__ import annotations

from kartothek_cube.core.arguments import (
    converter_str,
    converter_str_set,
    converter_str_set_optional,
    converter_str_tupleset,
    converter_tuple,
    get_str_to_python_converter,
)

__all__ = (
    "converter_str",
    "converter_str_set",
    "converter_str_set_optional",
    "converter_str_tupleset",
    "converter_tuple",
    "get_str_to_python_converter",
)
