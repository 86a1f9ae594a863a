"""Requests that a client gives up and the server applies later; requests of others between two of one."""

import os
from contextlib import suppress

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.dataset_files import file_keys
from kartothek_cube.core.errors import ConcurrentWriteError, UnknownOutcomeError
from kartothek_cube.core.history import KEEP_HISTORY
from kartothek_cube.core.naming import header_keys
from kartothek_cube.core.store import PreconditionFailed, blob_store, local, open_blobs
from kartothek_cube.io.eager import build_dataset_indices
from kartothek_cube.io.eager_cube import update_schema
from kartothek_cube.io_components.maintenance import garbage
from kartothek_cube.io_components.maintenance.pins import pin_cube
from kartothek_cube.io_components.write import write_commit
from tests.support import concurrent_cubes as cubes
from tests.support.concurrent_cubes import CUBE, EVEN, LATER, MORE, NEW, OLD, OPERATIONS, STARTS
from tests.support.interleave import Choice, Crash, LostAnswer, ModelStore, Outcome, Run, World

SEED, EXTRA = header_keys("c++seed")[0], header_keys("c++extra")[0]
READS = ("get", "head", "list")


class HookedWorld(World):
    """A store whose requests of the operation under test go through a hook."""

    hook = None

    def put(self, key, data, operation=-1):
        return super().put(key, data, -1)

    def step(self, operation, method, key, action):
        return action() if operation < 0 or self.hook is None else self.hook(method, key, action)


@pytest.fixture
def world():
    with cubes.deterministic():
        yield HookedWorld("s3")


@pytest.fixture
def store(world):
    return ModelStore(world)


def call(world, hook, operation, *args, **kwargs):
    world.hook = hook
    try:
        operation(*args, ModelStore(world, 0), **kwargs)
    except Exception as error:
        return error
    finally:
        world.hook = None


class Late:
    """Hook: the first request of a kind fails, and is applied when `land` is called."""

    def __init__(self, method, part):
        self.method, self.part, self.request = method, part, None

    def __call__(self, method, key, action):
        if self.request is None and method == self.method and self.part in key:
            self.request = action
            raise OSError("timeout")
        return action()

    def land(self):
        """False if the server refuses the request."""
        with suppress(PreconditionFailed):
            self.request()
            return True
        return False


class Before:
    """Hook: runs a function before the first requests of a kind."""

    def __init__(self, method, part, function, times=1):
        self.method, self.part, self.function, self.times = method, part, function, times

    def __call__(self, method, key, action):
        if self.times and method == self.method and self.part in key:
            self.times -= 1
            self.function()
        return action()


def apply_late(start, name):
    """Each request of an operation that writes fails, and is applied when the operation has ended."""
    base = World("s3")
    with cubes.deterministic():
        state = STARTS[start](ModelStore(base))
    n_late = 0
    while True:
        world, numbers = HookedWorld("s3", base.blobs), iter(range(1_000))
        late = []

        def hook(method, key, action, numbers=numbers, late=late, n_late=n_late):
            if method not in READS and next(numbers) == n_late:
                late.append(action)
                raise OSError(f"timeout of {method} {key}")
            return action()

        with cubes.deterministic(1_000_000):
            error = call(world, hook, OPERATIONS[name][0])
            if not late:
                return n_late
            with suppress(PreconditionFailed):
                late[0]()
            run = Run(choices=[Choice(0, LostAnswer)], outcomes=[Outcome(error and Crash())])
            cubes.check(world, state, (name,), run)
        n_late += 1


ALL = [(start, name) for start in STARTS for name in OPERATIONS if cubes.applies(name, start)]
#: those that went wrong when late requests were not fenced off
SAMPLE = [
    ("nothing", "build two"),
    ("past", "compact"),
    ("computed", "compute"),
    ("two", "append both"),
    ("two", "rollback both"),
    ("staged", "publish staged"),
]


@pytest.mark.parametrize(
    "start, name",
    [
        pytest.param(*pair, marks=[] if pair in SAMPLE else pytest.mark.slow("many operations"))
        for pair in ALL
        if "query" not in pair[1]
    ],
)
def test_a_request_that_arrives_late_does_no_harm(start, name):
    n_late = apply_late(start, name)
    assert n_late or (start, name) not in SAMPLE


def test_a_header_that_arrives_late_is_refused(world, store):
    api.build_cube(cubes.both(OLD), CUBE, store)
    token = api.list_cube_history(CUBE, store)["seed"][-1].version
    late = Late("put_if", SEED)
    assert type(call(world, late, api.append_to_cube, cubes.both(MORE), CUBE)) is not UnknownOutcomeError
    assert not late.land()
    assert cubes.content(store) == (frozenset(OLD.items()),) * 2
    # the state has the version that it had
    assert api.list_cube_history(CUBE, store)["seed"][-1].version == token
    api.append_to_cube(cubes.both(MORE), CUBE, store)
    assert cubes.content(store) == (frozenset({**OLD, **MORE}.items()),) * 2


def test_a_commit_whose_answer_was_lost_is_not_said_to_be_undone(world, store, monkeypatch):
    """It breaks a rule of the cube beside another one, and the state before is not known any more."""

    def validate(*arguments):
        raise write_commit._OutcomeError

    api.build_cube(cubes.seed(OLD), CUBE, store)
    monkeypatch.setattr(write_commit, "_validate", validate)
    failing = ["get", "put_if"]

    def hook(method, key, action):
        answer = action()
        if key == EXTRA and failing and method == failing[-1]:
            failing.pop()
            raise OSError("timeout")
        return answer

    error = call(world, hook, api.extend_cube, {"extra": cubes.extra(NEW)}, CUBE)
    assert isinstance(error, UnknownOutcomeError), error
    assert cubes.content(store) == (frozenset(OLD.items()), frozenset(NEW.items()))


def test_the_first_header_of_a_dataset_may_arrive_late(world, store):
    late = Late("put_if", SEED)
    assert isinstance(call(world, late, api.build_cube, cubes.seed(NEW), CUBE), UnknownOutcomeError)
    assert late.land()
    assert cubes.content(store) == (frozenset(NEW.items()), None)


def test_a_late_deletion_of_a_refused_attempt_spares_the_state_that_the_next_one_archives(world, store):
    class Killed(BaseException):
        pass

    def race():
        hook, world.hook = world.hook, None
        api.append_to_cube({"extra": cubes.extra(LATER)}, CUBE, store)
        world.hook = hook

    metadata = {name: {KEEP_HISTORY: 0} for name in ("seed", "extra")}
    api.build_cube(cubes.both(OLD), CUBE, store, metadata=metadata)
    late, racing = Late("delete", ".before"), Before("put_if", EXTRA, race)

    def hook(method, key, action):
        if method == "put_if" and key == SEED:
            raise Killed
        return racing(method, key, lambda: late(method, key, action))

    with pytest.raises(Killed):
        call(world, hook, api.append_to_cube, cubes.both(MORE), CUBE)
    before = cubes.content(store)
    assert late.land()
    assert cubes.content(store) == before
    api.append_to_cube(cubes.both(MORE), CUBE, store)


def test_a_deletion_that_is_repeated_spares_a_new_cube(world, store):
    api.build_cube(cubes.seed(OLD), CUBE, store)

    def hook(method, key, action):
        if method == "delete_if" and key == SEED and world.hook is hook:
            action()
            world.hook = None
            api.build_cube(cubes.seed(NEW), CUBE, store)
            raise OSError("timeout")
        return action()

    assert call(world, hook, api.delete_cube, CUBE) is None
    assert cubes.content(store) == (frozenset(NEW.items()), None)


def test_a_deletion_that_arrives_late_spares_an_archived_state(world, store):
    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    api.build_cube(cubes.both(OLD), CUBE, store)
    with pytest.raises(Killed):
        call(world, Before("put_if", EXTRA, kill), api.append_to_cube, cubes.both(LATER), CUBE)
    late = Late("delete", "c++extra/_history")
    assert call(world, late, api.cleanup_cube, CUBE) is None
    # archives the same state again
    with pytest.raises(Killed):
        call(world, Before("put_if", SEED, kill), api.append_to_cube, cubes.both(MORE), CUBE)
    if late.request is not None:
        late.land()
    assert cubes.content(store) == (frozenset(OLD.items()),) * 2
    api.append_to_cube(cubes.both(MORE), CUBE, store)


def test_a_version_of_a_delta_log_that_arrives_late_has_its_files(world, store):
    STARTS["published"](store)
    late = Late("put_if", "_delta_log")
    assert isinstance(call(world, late, api.publish_cube, CUBE), OSError)
    api.remove_partitions(CUBE, store, EVEN, ["seed"])
    api.cleanup_cube(CUBE, store)
    assert late.land()
    cubes._check_table(store)


def test_a_request_that_is_repeated_and_refused_leaves_the_index_of_its_state(world, store):
    api.build_cube(cubes.seed(OLD), CUBE, store)

    def hook(method, key, action):
        if method == "put_if" and key == SEED:
            world.hook = None
            action()
            api.append_to_cube(cubes.seed(LATER), CUBE, store)
            raise PreconditionFailed(key)
        return action()

    assert call(world, hook, api.append_to_cube, cubes.seed(MORE), CUBE) is None
    assert cubes.observe(store, as_of={"seed": 2}, conditions=api.C("x") == 4)
    api.rollback_cube(CUBE, store, {"seed": 2})


#: operations of which one names a column that the other one takes away
OF_COLUMNS = {
    "contract": lambda store: api.set_contract(CUBE, store, "seed", [api.InRange("v", 0, 50)]),
    "index": lambda store: build_dataset_indices(lambda: store, "c++seed", ["v"]),
    "rename": lambda store: update_schema(CUBE, store, rename={"v": "z"}),
    "drop": lambda store: update_schema(CUBE, store, drop="v"),
    "widen": lambda store: update_schema(CUBE, store, widen={"v": "float64"}),
}


@pytest.mark.parametrize(
    "pair",
    ["contract-rename", "contract-widen", "rename-contract", "drop-contract", "index-rename", "index-drop"],
)
def test_a_column_is_not_taken_away_beside_an_operation_that_names_it(world, store, pair):
    operation, other = map(OF_COLUMNS.get, pair.split("-"))
    api.build_cube(cubes.seed(OLD), CUBE, store)
    states = []

    def race():
        hook, world.hook = world.hook, None
        other(store)
        states.append(api.discover_datasets_unchecked("c", store)["seed"])
        world.hook = hook

    error = call(world, Before("put_if", SEED, race), operation)
    assert isinstance(error, ConcurrentWriteError), error
    assert api.discover_datasets_unchecked("c", store)["seed"] == states[0]


# garbage collections


def test_a_pin_that_is_renewed_beside_a_cleanup_counts(world, store):
    api.build_cube(cubes.seed(OLD), CUBE, store)
    pin = pin_cube(CUBE, store)
    pinned = cubes.observe(store, as_of=pin.token)
    api.remove_partitions(CUBE, store, EVEN, ["seed"])
    assert call(world, Before("get", ".pin", pin.renew, times=3), api.cleanup_cube, CUBE) is None
    assert cubes.observe(store, as_of=pin.token) == pinned


def test_a_pin_that_is_renewed_beside_its_reader_is_found(world, store):
    api.build_cube(cubes.seed(OLD), CUBE, store)
    pin = pin_cube(CUBE, store)
    pinned = cubes.observe(store, as_of=pin.token)
    api.remove_partitions(CUBE, store, EVEN, ["seed"])
    api.cleanup_cube(CUBE, store)
    found = []

    def read(store):
        found.append(cubes.observe(store, as_of=pin.token))

    assert call(world, Before("get", ".pin", pin.renew), read) is None
    assert found == [pinned]


def test_a_state_that_is_archived_beside_a_cleanup_keeps_its_files(world, store):
    api.build_cube(cubes.seed(OLD), CUBE, store)
    api.keep_cube_history(CUBE, store, 5)
    listed = []

    def list_garbage():
        listed.extend(blob.key for blob in garbage.list_cube_garbage(CUBE, store))

    # before the append is committed, its file is garbage
    assert (
        call(world, Before("put_if", SEED, list_garbage), api.append_to_cube, cubes.seed(MORE), CUBE) is None
    )
    version = api.list_cube_history(CUBE, store)["seed"][-1].version
    api.remove_partitions(CUBE, store, EVEN, ["seed"])
    before = cubes.observe(store, as_of={"seed": version})
    garbage.delete_garbage(lambda: store, listed)
    assert listed
    assert cubes.observe(store, as_of={"seed": version}) == before


def test_a_copy_over_a_cube_keeps_the_ids_of_staged_writes(store):
    STARTS["staged"](store)
    write = cubes._STAGED["write"]
    api.publish_staged(write, store)
    cubes._copy(store, overwrite=True, data=cubes.both(NEW))
    copied = cubes.content(store)
    api.publish_staged(write, store)
    assert cubes.content(store) == copied


# file systems


def test_times_of_a_file_system_that_counts_seconds_do_not_repeat(tmp_path, monkeypatch):
    path, utime = tmp_path / "header", os.utime
    path.write_bytes(b"")
    monkeypatch.setattr(os, "utime", lambda file, ns: utime(file, ns=(ns[0] // 10**9 * 10**9,) * 2))
    times = [0]
    for _ in range(3):
        local.set_unique_mtime(str(path), times[-1])
        times.append(path.stat().st_mtime_ns)
    assert times == sorted(set(times))


def test_files_that_a_directory_lists_in_another_case_are_no_garbage(tmp_path, monkeypatch):
    """Of partitions that differ in case only, a file system that ignores it has one directory."""
    cube, store = api.Cube(["x"], ["p"], "c"), f"hfs://{tmp_path}"
    api.build_cube(pd.DataFrame({"x": [1, 2], "p": ["de", "DE"]}), cube, store)
    keys = file_keys(api.discover_datasets_unchecked("c", store)["seed"])
    own = local.LocalBlobStore.list

    def listed(self, prefix):
        return [blob_store.Blob(key.replace("p=DE", "p=de"), *rest) for key, *rest in own(self, prefix)]

    monkeypatch.setattr(local.LocalBlobStore, "list", listed)
    assert api.list_cube_garbage(cube, store) == []
    assert api.verify_cube(cube, store).ok
    garbage.delete_garbage(store, [key.replace("p=DE", "p=de") for key in keys])
    assert all(map(open_blobs(store).exists, keys))
