"""From the name of a store, or its URL, to its factory."""

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
    """
    Factory of a store out of its configuration in the YAML file.

    Parameters
    ----------
    config
        Arguments of :func:`storefact.get_store`.
    """

    config: Mapping[str, Any] = field(repr=False)

    def __call__(self) -> KeyValueStore:
        """Open the store."""
        from storefact import get_store

        return get_store(**self.config)


def find_store(name: str, skv: str, *, create: bool) -> StoreFactory:
    """
    Find a store.

    Parameters
    ----------
    name
        Name in the YAML file, or a URL.
    skv
        The YAML file, which is not needed for URLs.
    create
        Whether a directory that is missing may be created.

    Returns
    -------
    callable

    Raises
    ------
    click.UsageError
        There is no such store, or no such file.
    ValueError
        The store cannot be opened.
    """
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
            f"Store {name} in {skv} has no type; expected a URL, or 'type' (hfs, s3, ...) and its parameters"
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
    """A directory that is opened is created, which after a typo is not what anybody wants."""
    if not create and path and not os.path.isdir(path):
        raise ValueError(f"there is no directory {path}")


def read_stores(path: str) -> Mapping[str, Any]:
    """
    Read the YAML file of stores.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    dict
        Name to configuration.

    Raises
    ------
    click.UsageError
        The file cannot be read or has another structure.
    """
    try:
        with open(path, encoding="utf-8") as file:
            stores = yaml.safe_load(file)
    except OSError as error:
        usage_error(
            f"Could not load store YAML {path}: {error.strerror}; "
            "name a store by its URL (--store hfs:///data), or the file by --skv"
        )
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        usage_error(f"Could not parse store YAML {path}: {one_line(error)}")
    if not isinstance(stores, dict):
        usage_error(
            f"Could not parse store YAML {path}: expected names of stores, each with its configuration"
        )
    return {str(name): config for name, config in stores.items()}
