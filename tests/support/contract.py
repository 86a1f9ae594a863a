"""Compare names and signatures with tests/data/api-contract.json, what users of kartothek rely on.

Parameters must have the names, the order and the defaults of the contract; more of them may follow, by
keyword only.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

from tests.support.paths import DATA

_PATH = DATA / "api-contract.json"
MODULES: dict[str, dict[str, Any]] = json.loads(_PATH.read_text(encoding="utf-8"))["modules"]

Params = Sequence[Mapping[str, Any]]


def check_name(module: str, name: str) -> list[str]:
    spec = MODULES[module]["names"][name]
    there = importlib.import_module(module)
    if not hasattr(there, name):
        return [f"{module} has no {name}"]
    obj = getattr(there, name)
    if "defined_in" in spec:
        origin = getattr(importlib.import_module(spec["defined_in"]), name)
        return [] if obj is origin else [f"{module}.{name} is not {spec['defined_in']}.{name}"]
    return list(CHECKS[spec["kind"]](f"{module}.{name}", obj, spec))


def star_exports(module: str) -> list[str]:
    """Names of the contract that ``from module import *`` does not give."""
    there = importlib.import_module(module)
    exported = getattr(there, "__all__", [name for name in vars(there) if not name.startswith("_")])
    return [
        name
        for name, spec in MODULES[module]["names"].items()
        if not spec.get("not_in_star_export") and name not in exported
    ]


def _check_function(where: str, obj: Any, spec: Mapping[str, Any]) -> Iterator[str]:
    if not inspect.isroutine(obj):
        yield f"{where} is no function"
        return
    yield from (f"{where}: {why}" for why in parameters_differ(spec["params"], obj))


def _check_constant(where: str, obj: Any, spec: Mapping[str, Any]) -> Iterator[str]:
    if "value" in spec and repr(obj) != spec["value"]:
        yield f"{where} is {obj!r} instead of {spec['value']}"


def _check_class(where: str, cls: Any, spec: Mapping[str, Any]) -> Iterator[str]:
    if not inspect.isclass(cls):
        yield f"{where} is no class"
        return
    names = {base.__name__ for base in cls.__mro__}
    bases = [base.rpartition(".")[2].replace("IOError", "OSError") for base in spec.get("bases", ())]
    yield from (f"{where} is no {base}" for base in bases if base not in names)
    if "constructor" in spec:
        yield from (f"{where}: {why}" for why in parameters_differ(spec["constructor"], cls))
    for name, value in spec.get("class_attributes", {}).items():
        if repr(getattr(cls, name, None)) != value:
            yield f"{where}.{name} is {getattr(cls, name, None)!r} instead of {value}"
    for name in spec.get("properties", ()):
        if not hasattr(cls, name):
            yield f"{where} has no {name}"
    for name, method in spec.get("methods", {}).items():
        yield from _check_method(f"{where}.{name}", cls, name, method)


def _check_method(where: str, cls: type, name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    if not callable(getattr(cls, name, None)):
        yield f"{where} is missing"
        return
    # a static method and a class method are called in the same way
    wanted = spec["binding"] == "instance"
    bound = not isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    if bound != wanted:
        yield f"{where} is {'' if bound else 'not '}called on an instance"
        return
    skip = 1 if bound else 0
    yield from (f"{where}: {why}" for why in parameters_differ(spec["params"], getattr(cls, name), skip))


CHECKS: dict[str, Callable[[str, Any, Mapping[str, Any]], Iterator[str]]] = {
    "function": _check_function,
    "class": _check_class,
    "constant": _check_constant,
}


def parameters_differ(expected: Params, obj: Callable[..., Any], skip: int = 0) -> list[str]:
    """What is wrong with the parameters of a callable; ``skip`` leaves out the first ones (``self``)."""
    params = list(inspect.signature(obj).parameters.values())[skip:]
    kinds = {param.kind for param in params}
    found = []
    for name, kind in (("var_positional", Parameter.VAR_POSITIONAL), ("var_keyword", Parameter.VAR_KEYWORD)):
        if any(spec.get("kind") == name for spec in expected) and kind not in kinds:
            found.append(f"takes no {name} arguments")
    named = [spec for spec in expected if "kind" not in spec]
    positional = [p for p in params if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    got, exp = [p.name for p in positional], [spec["name"] for spec in named]
    if got != exp:
        return [*found, f"parameters are {got} instead of {exp}"]
    pairs = zip(positional, named)
    found += filter(None, (_default_differs(param, spec) for param, spec in pairs))
    required = [p.name for p in params if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty]
    return found + [f"parameter {name} is new and has no default" for name in required]


def _default_differs(param: Parameter, spec: Mapping[str, Any]) -> str | None:
    default = None if param.default is Parameter.empty else repr(param.default)
    if default == spec.get("default"):
        return None
    return f"default of {param.name} is {default or 'missing'} instead of {spec.get('default', 'missing')}"
