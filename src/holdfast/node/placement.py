"""Which slot each unit is on: even, near its state, and with as few moves as that allows.

Invariants:
    * Of each stage every slot has as many units as any other, or one more.
    * A unit stays where it is unless its slot is gone or has too many: those of other slots never pause.
    * A unit that has to go goes to a slot of the host that its state is on, where such a slot has room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Placed(msgspec.Struct):
    """A unit of a stage as it is now: its slot, if it has one, and the host where its state is, if that is known."""

    shard: int
    slot: int | None = None
    host: str | None = None


def place(
    units: Sequence[Placed], slots: Sequence[int], hosts: Mapping[int, str], load: Mapping[int, int]
) -> dict[int, int]:
    """Return the slot of each shard of a stage. `load` is how many units of other stages each slot has."""
    assert slots, "units cannot be placed on no slots"
    room = _room(units, slots, load)
    chosen: dict[int, int] = {}
    homeless: list[Placed] = []
    for unit in units:
        if unit.slot is not None and room.get(unit.slot, 0) > 0:
            room[unit.slot] -= 1
            chosen[unit.shard] = unit.slot
        else:
            homeless.append(unit)
    strangers: list[Placed] = []
    for unit in homeless:
        near = [slot for slot in slots if room[slot] and unit.host is not None and hosts.get(slot) == unit.host]
        if near:
            slot = max(near, key=lambda near: room[near])
            room[slot] -= 1
            chosen[unit.shard] = slot
        else:
            strangers.append(unit)
    # Neighbours together: a slot then reads one piece of a frame.
    places = (slot for slot in slots for _ in range(room[slot]))
    chosen.update({unit.shard: slot for unit, slot in zip(strangers, places, strict=True)})
    return chosen


def _room(units: Sequence[Placed], slots: Sequence[int], load: Mapping[int, int]) -> dict[int, int]:
    """Return how many units each slot is to have: one more for those that have most of them now, or least of others."""
    least, more = divmod(len(units), len(slots))
    count = dict.fromkeys(slots, 0)
    for unit in units:
        if unit.slot in count:
            count[unit.slot] += 1
    first = sorted(slots, key=lambda slot: (count[slot] <= least, load.get(slot, 0), slots.index(slot)))
    return {slot: least + (slot in first[:more]) for slot in slots}
