"""Operations in processes of their own, on a file system whose power fails."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import dask
import pandas as pd

from kartothek_cube.io.dask.delayed import store_delayed_as_dataset
from tests.support import power_operations
from tests.support.crash import Place, seed
from tests.support.ext4 import cut_power
from tests.support.power_operations import UUID, Operation

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.power_processes"])

#: seconds after which a process is taken for stuck
_PATIENCE = 60


@dask.delayed
def _frame(p: int) -> pd.DataFrame:
    return seed(p)


def _store_by_others(at: Place) -> None:
    """Write the data files in other processes than the one that commits."""
    graph = store_delayed_as_dataset([_frame(p) for p in range(4)], at.store, UUID, partition_on=["p"])
    graph.compute(scheduler="processes", num_workers=2, context="fork")


OPERATIONS = {**power_operations.OPERATIONS, "dataset store by others": Operation((), (_store_by_others,))}


def _work(name: str, folder: Path, done: Any, last: int) -> None:
    # what fails without power is not worth a traceback
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    for number, step in enumerate(OPERATIONS[name].steps, 1):
        step(Place.below(folder))
        if number == last:
            cut_power(folder)
        done.value = number
        if number == last:
            return


def run(name: str, folder: Path, *, last: int = 0, seconds: float = 0) -> int:
    """Run an operation until the power fails, after step `last` or some time; the acknowledged steps."""
    done = _FORKS.Value("i", 0)
    process = _FORKS.Process(target=_work, args=(name, folder, done, last))
    process.start()
    process.join(_PATIENCE if last else seconds)
    # before the power fails: a step returns without power, too, if only what follows its commit has failed
    n_done = int(done.value)
    if not last:
        cut_power(folder)
        process.join(_PATIENCE)
    process.kill()
    process.join()
    return n_done
