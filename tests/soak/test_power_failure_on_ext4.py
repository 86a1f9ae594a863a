"""Power failures of a real file system: right after steps were acknowledged, and in between."""

import os
import random
import shutil
import time

import pytest

from tests.support import ext4, power_processes
from tests.support.crash import Place
from tests.support.power_operations import clean, contents

#: power failures of each operation; half of them right after a step
FAILURES = int(os.environ.get("KARTOTHEK_CUBE_FAILURES", "10"))
SEED = os.environ.get("KARTOTHEK_CUBE_SEED")


def hide_names(contents):
    """Contents without the names of the files of published tables, which each process chooses."""
    hidden = dict(contents)
    for place, value in contents.items():
        if place[1].endswith(" table"):
            version, files = value
            hidden[place] = version, [os.path.dirname(file) for file in files]
    return hidden


@pytest.mark.parametrize("name", power_processes.OPERATIONS)
def test_power_failure(name, tmp_path):
    operation = power_processes.OPERATIONS[name]
    draws = random.Random(SEED)
    before, image, folder = tmp_path / "before", tmp_path / "image", tmp_path / "disk"
    with ext4.Ext4(before, folder):
        for step in operation.before:
            step(Place.below(folder))
        states = [hide_names(contents(folder))]
    shutil.copy(before, image)
    with ext4.Ext4(image, folder):
        begin = time.perf_counter()
        for step in operation.steps:
            step(Place.below(folder))
            states.append(hide_names(contents(folder)))
        seconds = time.perf_counter() - begin

    for number in range(FAILURES):
        shutil.copy(before, image)
        disk = ext4.Ext4(image, folder, ext4.OPTIONS[number // 2 % len(ext4.OPTIONS)])
        with disk:
            if number % 2:
                last = draws.randrange(len(operation.steps)) + 1
                done, is_at_rest = power_processes.run(name, folder, last=last), True
                assert done == last
            else:
                done, is_at_rest = power_processes.run(name, folder, seconds=draws.uniform(0, seconds)), False
        with disk:
            if operation.deletes and not is_at_rest:
                continue
            left = contents(folder)
            found = hide_names(left)
            allowed = states[done : done + 1] if is_at_rest else states[done : done + 2]
            for place in {place for state in (*allowed, found) for place in state}:
                assert any(found.get(place) == state.get(place) for state in allowed), (place, done, number)
            clean(folder, left)
