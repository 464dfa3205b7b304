"""Any order of waves, rollbacks, crashes and snapshots leaves the state equal to a plain dict."""

from __future__ import annotations

import shutil
import tempfile

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.state.driver import IDENTITY, LAYOUT, Model, contents, crash, create, pop, reopen, update

from holdfast.state import Snapshot, UnitState

KEYS = [(number, text) for number in range(6) for text in (b"", b"a", b"wide" * 9)]
KEYS += [(number, b"") for number in range(6, 400)]
TEXTS = st.sampled_from([b"", b"x", b"some text", b"y" * 100, b"long" * 5000])
ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(-5, 5), st.integers(0, 30), TEXTS), min_size=1, max_size=40
)
CROWDS = st.integers(0, len(KEYS)).flatmap(lambda end: st.just([(key, 1, end % 31, b"") for key in KEYS[:end]]))
STOPS = st.sampled_from(["located", "published", "changed"])


class StateMachine(RuleBasedStateMachine):
    """`model` is the open wave's view, `finished` that of the last finished wave, `before` of the one before."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="holdfast-test-")
        self.state = create(self.folder)
        self.model: Model = {}
        self.finished: Model = {}
        self.before: Model | None = None
        self.bucket = 0
        self.bucket_before = 0
        self.is_open = False
        self.snapshot: Snapshot | None = None
        self.snapshot_model: Model = {}
        self.images: dict[tuple[int, int], bytes] = {}
        self.images_wave = -1

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        if self.snapshot is not None:
            self.snapshot.release()
        self.state.close()
        shutil.rmtree(self.folder)

    @precondition(lambda self: not self.is_open)
    @rule()
    def begin(self) -> None:
        self.state.begin(self.bucket)
        self.model = dict(self.finished)
        self.is_open = True
        # The journal has now said that the finished wave stays.
        self.before = None

    @precondition(lambda self: not self.is_open and self.before is not None)
    @rule()
    def begin_after_a_wave_that_was_not_committed(self) -> None:
        assert self.before is not None
        self.state.begin(self.bucket_before)
        self.bucket, self.finished = self.bucket_before, self.before
        self.model = dict(self.finished)
        # Images of the wave that is gone stay: what its rollback changes is in the next increment.
        self.is_open, self.before = True, None

    @precondition(lambda self: self.is_open)
    @rule(rows=st.one_of(ROWS, CROWDS))
    def change(self, rows: list) -> None:
        if rows:
            update(self.state, self.model, rows)

    @precondition(lambda self: self.is_open)
    @rule(limit=st.integers(0, 32))
    def close_windows(self, limit: int) -> None:
        pop(self.state, self.model, limit)

    @precondition(lambda self: self.is_open)
    @rule()
    def finish(self) -> None:
        meta = str(len(self.model)).encode()
        self.state.finish(self.bucket + 1, meta)
        self.before, self.bucket_before = self.finished, self.bucket
        self.finished, self.bucket = self.model, self.bucket + 1
        self.is_open = False
        assert self.state.meta == meta and self.state.bucket_end == self.bucket

    @precondition(lambda self: self.is_open)
    @rule(rows=ROWS, stop=STOPS)
    def crash_in_a_wave(self, rows: list, stop: str) -> None:
        update(self.state, self.model, rows, stop)
        self.crash()

    @rule()
    def crash(self) -> None:
        crash(self.state)
        self.state = reopen(self.state)
        self.is_open = False

    @precondition(lambda self: self.is_open)
    @rule()
    def roll_back(self) -> None:
        self.state.rollback()
        self.state.end()
        self.is_open = False
        self.model = dict(self.finished)

    @precondition(lambda self: not self.is_open and self.snapshot is None and not self.state.is_dirty)
    @rule()
    def prepare_snapshot(self) -> None:
        self.snapshot = self.state.prepare()
        self.snapshot_model = dict(self.finished)

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def write_snapshot_and_restore_it_elsewhere(self) -> None:
        assert self.snapshot is not None
        for page in self.snapshot.pages(since=self.images_wave):
            self.images[page.set_number, page.logical] = bytes(page.data)
        self.snapshot.release()
        head, self.snapshot = self.snapshot.head, None
        self.images_wave = head.wave
        pages = [(*place, data) for place, data in sorted(self.images.items(), reverse=True)]
        path = f"{self.folder}/restored"
        restored = UnitState.restore(path, IDENTITY, LAYOUT, head, pages)
        restored.begin(head.bucket_end)
        assert contents(restored, KEYS) == self.snapshot_model
        model = dict(self.snapshot_model)
        pop(restored, model, 15)
        update(restored, model, [(KEYS[0], 1, 20, b"again")])
        assert contents(restored, KEYS) == model
        restored.finish(head.bucket_end + 1)
        restored.remove()

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def give_snapshot_up(self) -> None:
        assert self.snapshot is not None
        self.snapshot.release()
        self.snapshot = None

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "state") or self.state.is_dirty != self.is_open:
            return
        assert contents(self.state, KEYS) == (self.model if self.is_open else self.finished)
        assert self.state.maps["groups"].count == len(self.model if self.is_open else self.finished)


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
