"""Find a store by its name in the YAML file or by its URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from kartothek_cube.cli.errors import one_line, usage_error
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.store.resolve import lazy_store

if TYPE_CHECKING:
    from simplekv import KeyValueStore

    from kartothek_cube.core.typing import StoreFactory

__all__ = ("ConfiguredStore", "find_store", "read_stores")

_DIRECTORIES = ("hfs", "fs")


@dataclass(frozen=True)
class ConfiguredStore:
    """Factory of a store from its configuration in the YAML file, the arguments of `storefact.get_store`."""

    config: Mapping[str, Any] = field(repr=False)

    def __call__(self) -> KeyValueStore:
        """Open the store."""
        from storefact import get_store

        return get_store(**self.config)


def find_store(name: str, skv: str, *, create: bool) -> StoreFactory:
    """Return the factory of a store by name or URL; ``create`` permits a missing directory."""
    if "://" in name:
        return _from_url(name, create)
    stores = read_stores(skv)
    if name not in stores:
        usage_error(f"Could not find store {name} in {skv}: {unknown_names('store', [name], stores)}")
    config = stores[name]
    if isinstance(config, str):
        return _from_url(config, create)
    if not isinstance(config, dict) or "type" not in config:
        usage_error(
            f"Store {name} in {skv} has no type: expected a URL, or 'type' (hfs, s3, ...) and its parameters"
        )
    path = config.get("path")
    if config["type"] in _DIRECTORIES and isinstance(path, str):
        _check_directory(path, create)
    return ConfiguredStore(config)


def _from_url(url: str, create: bool) -> StoreFactory:
    scheme, _, rest = url.partition("://")
    if scheme in _DIRECTORIES:
        _check_directory(rest.partition("?")[0], create)
    return lazy_store(url)


def _check_directory(path: str, create: bool) -> None:
    """Raise if a directory does not exist and must not be created."""
    # opening a local store creates its directory, which hides a typo
    if not create and path and not os.path.isdir(path):
        raise ValueError(f"no directory {path}")


def read_stores(path: str) -> Mapping[str, Any]:
    """Read the YAML file of stores: name to configuration."""
    try:
        with open(path, encoding="utf-8") as file:
            stores = yaml.safe_load(file)
    except OSError as error:
        usage_error(
            f"Could not load store YAML {path}: {error.strerror}; "
            "pass a URL (--store hfs:///data), or another file with --skv"
        )
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        usage_error(f"Could not parse store YAML {path}: {one_line(error)}")
    if not isinstance(stores, dict):
        usage_error(f"Could not parse store YAML {path}: expected a mapping of store names to configurations")
    return {str(name): config for name, config in stores.items()}
