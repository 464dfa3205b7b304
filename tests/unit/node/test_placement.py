"""Units on slots: even, near their state, and moved no more than needed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.node.placement import Placed, place


def test_units_begin_in_ranges_of_neighbours() -> None:
    placed = place([Placed(shard) for shard in range(8)], [0, 1, 2], {}, {})
    assert [placed[shard] for shard in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_those_of_a_lost_slot_move_and_nobody_else() -> None:
    before = [Placed(0, 0), Placed(1, 0), Placed(2, 1), Placed(3, 1), Placed(4, None), Placed(5, None)]
    assert place(before, [0, 1], {}, {}) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 0, 5: 1}


def test_a_new_slot_gets_its_share_and_no_more() -> None:
    after = place([Placed(shard, shard // 3) for shard in range(6)], [0, 1, 7], {}, {})
    assert Counter(after.values()) == {0: 2, 1: 2, 7: 2}
    assert sum(after[shard] != shard // 3 for shard in range(6)) == 2


def test_a_unit_goes_where_its_state_is() -> None:
    before = [Placed(0, 0, "a"), Placed(1, 1, "b"), Placed(2, None, "b"), Placed(3, None, "a")]
    hosts = {0: "a", 1: "b", 5: "a", 6: "b"}
    assert place(before, [0, 1, 5, 6], hosts, {}) == {0: 0, 1: 1, 2: 6, 3: 5}


def test_stages_that_do_not_divide_evenly_fill_each_others_gaps() -> None:
    first = place([Placed(shard) for shard in range(3)], [0, 1], {}, {})
    load = Counter(first.values())
    second = place([Placed(shard) for shard in range(3)], [0, 1], {}, load)
    assert Counter([*first.values(), *second.values()]) == {0: 3, 1: 3}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_comes_and_goes_it_stays_even_and_moves_little(data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, 40))
    units = [Placed(shard) for shard in range(shards)]
    slots = [0, 1]
    made = 2
    for _ in range(6):
        gone = data.draw(st.sets(st.sampled_from(slots), max_size=len(slots) - 1))
        come = data.draw(st.integers(0, 3))
        slots = [slot for slot in slots if slot not in gone] + list(range(made, made + come))
        made += come
        hosts = {slot: f"host{slot % 2}" for slot in slots}
        after = place(units, slots, hosts, {})
        counts = Counter(after.values())
        assert set(after) == set(range(shards)) and set(counts) <= set(slots)
        assert max(counts.values()) - min(counts.get(slot, 0) for slot in slots) <= 1
        kept = Counter(unit.slot for unit in units if unit.slot in slots)
        moved = sum(unit.slot in slots and after[unit.shard] != unit.slot for unit in units)
        # Only what is above the most that any slot may have, and what the fewest must get, has to move.
        most = -(-shards // len(slots))
        needed = sum(max(0, kept[slot] - most) for slot in slots)
        assert moved <= needed + len(slots)
        units = [Placed(shard, after[shard], hosts[after[shard]]) for shard in range(shards)]


def test_no_slots_are_no_place() -> None:
    with pytest.raises(AssertionError, match="no slots"):
        place([Placed(0)], [], {}, {})
