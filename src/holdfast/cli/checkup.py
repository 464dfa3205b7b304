"""What `holdfast doctor` looks at, and what it makes of it.

Guarantees:
    * A check never ends the checkup: whatever goes wrong in it is its finding.
    * Every finding that is not good says what to change.
    * Nothing is left behind in a store that was looked at.
"""

from __future__ import annotations

import os
import platform
import resource
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.errors import AlreadyExists, HoldfastError
from holdfast.log.store import open_store
from holdfast.node.state_folder import state_folder
from holdfast.ports import Store

if TYPE_CHECKING:
    from holdfast.spark.greeting import Greeting

Grade = Literal["good", "doubtful", "bad"]
GIB: Final = 1 << 30
STATE_BYTES_MIN: Final = 1 * GIB
DESCRIPTORS_MIN: Final = 4096
SYNC_SLOW_MS: Final = 50.0
EXECUTORS_LIMIT_S: Final = 60.0
LOOK_EVERY_S: Final = 0.05
_TEMPORARY: Final = {"tmpfs": "the memory of this machine", "ramfs": "the memory of this machine"}
_REMOTE: Final = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "lustre")


class Finding(msgspec.Struct, frozen=True):
    """What was looked at, how it is, and what to do about it."""

    part: str
    what: str
    grade: Grade
    found: str
    advice: str = ""


def check_machine() -> Iterator[Finding]:
    """Look at Java, Python and what the kernel allows here."""
    yield _guarded("machine", "Java", _java)
    yield Finding("machine", "Python", "good", platform.python_version())
    yield state_finding("machine", "memory for state", state_folder())
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN
    advice = f"raise it to {DESCRIPTORS_MIN} or more, with `ulimit -n` or in limits.conf: every segment is a file"
    yield Finding("machine", "open files", "doubtful" if few else "good", f"at most {soft}", advice if few else "")


def state_finding(part: str, what: str, folder: str, free: int | None = None) -> Finding:
    """Return whether a folder for state has room; in containers shared memory is 64 MB unless somebody said more."""
    if free is None:
        at = Path(folder)
        while not at.is_dir():
            at = at.parent
        room = os.statvfs(at)
        free = room.f_bavail * room.f_frsize
    small = free < STATE_BYTES_MIN
    advice = (
        "give the container more shared memory (docker --shm-size; on Kubernetes an emptyDir of medium Memory at "
        "/dev/shm), or name a folder on a fast disk with HOLDFAST_STATE_DIR"
    )
    found = f"{folder}, {free / GIB:.1f} GiB free"
    return Finding(part, what, "doubtful" if small else "good", found, advice if small else "")


def check_store(url: str) -> Iterator[Finding]:
    """Try everything that a log needs of its store, in a folder that is deleted again."""
    store: Store | None = None

    def opened() -> Finding:
        nonlocal store
        store = open_store(url)
        return Finding("store", "address", "good", store.url)

    yield _guarded("store", "address", opened)
    if store is None:
        return
    folder = f"doctor-{secrets.token_hex(8)}"
    tried = store
    try:
        yield _guarded("store", "exclusive files", lambda: _exclusive(tried, folder))
        yield _guarded("store", "durable appends", lambda: _appends(tried, folder))
        yield _guarded("store", "locks", lambda: _locks(tried, folder))
        yield _guarded("store", "file system", lambda: _file_system(tried))
    finally:
        tried.delete(folder)


def _exclusive(store: Store, folder: str) -> Finding:
    store.write_new(f"{folder}/new", b"first")
    try:
        store.write_new(f"{folder}/new", b"second")
    except AlreadyExists:
        return Finding("store", "exclusive files", "good", "the second of two writers is refused")
    return Finding(
        "store",
        "exclusive files",
        "bad",
        "a file was created twice",
        "two nodes could both take a term: use another store",
    )


def _appends(store: Store, folder: str) -> Finding:
    file = store.create(f"{folder}/appended")
    times_ms = []
    for _ in range(5):
        file.append([bytes(4096)])
        begun = time.perf_counter()
        file.sync()
        times_ms.append((time.perf_counter() - begun) * 1000)
    file.close()
    middle = sorted(times_ms)[2]
    slow = middle > SYNC_SLOW_MS
    advice = "every commit waits for one sync: results come later by as much, so put the store on a faster disk"
    found = f"4 KiB in {middle:.1f} ms"
    return Finding("store", "durable appends", "doubtful" if slow else "good", found, advice if slow else "")


def _locks(store: Store, folder: str) -> Finding:
    held = store.lock(f"{folder}/lock")
    again = store.lock(f"{folder}/lock")
    for lock in (held, again):
        if lock is not None:
            lock.release()
    if held is not None and again is None:
        return Finding("store", "locks", "good", "a lock that is held is not given again")
    advice = "a node that is started twice is then stopped by its term, later; mount the file system with locks"
    return Finding("store", "locks", "doubtful", "locks do not hold here", advice)


def _file_system(store: Store) -> Finding:
    path = os.path.realpath(store.url.removeprefix("file://"))
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    fitting = [(at, kind) for at, kind in mounts if path == at or path.startswith(at.rstrip("/") + "/")]
    at, kind = max(fitting, key=lambda mount: len(mount[0]))
    if kind in _TEMPORARY:
        advice = "a reboot deletes the store: put it on a disk"
        return Finding("store", "file system", "doubtful", f"{kind} at {at}: {_TEMPORARY[kind]}", advice)
    if kind == "overlay":
        advice = "the store goes with its container: mount a volume for it"
        return Finding("store", "file system", "doubtful", f"{kind} at {at}", advice)
    if kind.startswith(_REMOTE):
        advice = "what one host has synced or renamed, all others have to see at once: mount it without attribute cache"
        return Finding("store", "file system", "doubtful", f"{kind} at {at}", advice)
    return Finding("store", "file system", "good", f"{kind} at {at}")


SETTINGS: Final[Mapping[str, str]] = {
    "spark.scheduler.mode": "a long job of your own in the same session holds waves up",
    "spark.locality.wait": "a wave may run where its state is not, and is sent again",
    "spark.executor.heartbeatInterval": "a frozen executor is noticed late",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "a frozen executor is noticed late",
    "spark.network.timeoutInterval": "a frozen executor is noticed late",
    "spark.executor.removeDelayOnDisconnection": "a dead executor is noticed late",
    "spark.python.unix.domain.socket.enabled": "every wave takes longer",
    "spark.python.task.killTimeout": "a core stays taken after a wave was abandoned",
}
"""What goes wrong where a session has another value than `hf.settings()`."""


def check_session(spark: Any) -> Iterator[Finding]:
    """Compare a session with what waves need and like."""
    session_module: Any = import_module("holdfast.spark.session")
    conf = spark.sparkContext.getConf()
    master = conf.get("spark.master", "")

    def required() -> Finding:
        session_module.require(spark)
        return Finding("session", "needed settings", "good", f"all there; master {master}")

    yield _guarded("session", "needed settings", required)
    for name, why in SETTINGS.items():
        wanted, found = session_module.RECOMMENDED[name], conf.get(name, "not set")
        if found.lower() != wanted.lower():
            yield Finding("session", name, "doubtful", found, f"{why}: set it to {wanted}, as hf.settings() does")
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        advice = "units move whenever executors come or go; a stream wants a fixed number: set it to false"
        yield Finding("session", "spark.dynamicAllocation.enabled", "doubtful", "true", advice)
    if master.startswith(("yarn", "k8s")) and conf.get("spark.executor.memoryOverhead", None) is None:
        advice = (
            "state lies in shared memory, which counts as the container's: set it to the state of an executor's units "
            "and 512 MB"
        )
        yield Finding("session", "spark.executor.memoryOverhead", "doubtful", "not set", advice)


def check_executors(spark: Any, store: str | None) -> Iterator[Finding]:
    """Greet every executor, as a node does before it gives it work."""
    from holdfast import __version__
    from holdfast.spark.executors import Executors
    from holdfast.spark.greeting import packages

    context = spark.sparkContext
    if context._jsc.sc().isLocal():
        yield Finding("executors", "local mode", "good", "the session runs in this process's JVM alone")
        return
    executors = Executors(context, f"doctor-{os.getpid()}", None if store is None else open_store(store))
    deadline = time.monotonic() + EXECUTORS_LIMIT_S
    failed: str | None = None
    try:
        while (executors.is_waiting or not executors.seen_any) and time.monotonic() < deadline and failed is None:
            try:
                executors.poll()
            except HoldfastError as error:
                failed = str(error)
            time.sleep(LOOK_EVERY_S)
    finally:
        executors.close()
    if not executors.seen_any:
        advice = "see the cluster's own page: are there workers with free cores, and memory enough for an executor?"
        yield Finding("executors", "number", "bad", f"none within {EXECUTORS_LIMIT_S:.0f} s", advice)
    here = {"python": platform.python_version(), "holdfast": __version__, **packages()}
    for name, greeting in sorted(executors.greetings.items()):
        yield _executor_finding(name, executors.fit[name].host, greeting, here)
        yield state_finding(f"executor {name}", "memory for state", greeting.state_folder, greeting.state_bytes_free)
    for name, why in sorted(executors.unfit.items()):
        yield Finding(f"executor {name}", "greeting", "bad", why, "mend that on its host; until then it gets no work")


def _executor_finding(name: str, host: str, greeting: Greeting, here: Mapping[str, str]) -> Finding:
    there = {"python": greeting.python, "holdfast": greeting.holdfast, **greeting.packages}
    differing = [
        f"{each} {there.get(each, 'missing')} there, {here[each]} here"
        for each in here
        if there.get(each) != here[each]
    ]
    found = f"{host}, Python {greeting.python}, sees the store"
    if not differing:
        return Finding(f"executor {name}", "greeting", "good", found)
    advice = "results may differ between hosts: install the same versions on all"
    return Finding(f"executor {name}", "greeting", "doubtful", f"{found}; {', '.join(differing)}", advice)


def _java() -> Finding:
    jvm: Any = import_module("holdfast.spark.jvm")
    java = jvm.java_command()
    return Finding("machine", "Java", "good", f"{jvm.java_version(java)}, {java}")


def _guarded(part: str, what: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (HoldfastError, OSError) as error:
        return Finding(part, what, "bad", "does not work", str(error))
