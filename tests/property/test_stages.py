"""Stages behind stages: how the buckets of either are grouped into waves changes nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.node.chain import BUCKETS, FIRST, chain_of

QUICK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LAST = FIRST + BUCKETS
ends = st.sets(st.integers(FIRST + 1, LAST - 1)).map(lambda some: [*sorted(some), LAST])


def digests(key: str | None, windowed: bool, seed: int, waves: dict[str, list[int]]) -> list[Any]:
    """Run both stages, each up to its own ends as soon as that is possible."""
    with tempfile.TemporaryDirectory() as folder:
        session = chain_of(Path(folder), key, windowed, seed=seed)
        for stage in waves:
            session.turn_to(stage).attach_all()
        for end in waves["totals"]:
            session.turn_to("totals").process(end, ended=end == LAST)
            session.turn_to("behind")
            for later in waves["behind"]:
                if session.committed(0) < later <= end:
                    session.process(later, ended=later == LAST)
        found = [session.log.ledger.digests(stage) for stage in waves]
        session.close()
        return found


@QUICK
@given(st.sampled_from(["item", "least", None]), st.booleans(), st.integers(0, 99), ends, ends)
def test_waves_of_either_stage_change_nothing(
    key: str | None, windowed: bool, seed: int, first: list[int], second: list[int]
) -> None:
    whole = digests(key, windowed, seed, {"totals": [LAST], "behind": [LAST]})
    assert all(whole)
    assert digests(key, windowed, seed, {"totals": first, "behind": second}) == whole
