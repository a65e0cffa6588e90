"""Samples become conditions with hysteresis, and only changes are told."""

from __future__ import annotations

import msgspec
import pytest

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.conditions import AVOIDED, MEANINGS, ConditionTracker, Limits, at_a_glance
from llmgw.core.events import Condition
from llmgw.core.limits import BANDS, contradictions
from llmgw.core.meanings import UNLISTED, XIDS, what_to_do
from llmgw.core.memory import Policy
from llmgw.hardware.types import DeviceReading, Inventory, Process, Readings, Wear, instance_id
from tests.core.agent import Agent, published
from tests.core.samples import COOL, MIB, ONE, held_mib, of_card, offered, reads, used_by

NOTHING = Readings(cards=(reads(),))
"""A sample that came, and measured nothing of the card."""


class Watch:
    """A tracker under which a machine is seen again and again; all was well at first."""

    def __init__(self, inventory: Inventory | None = ONE, limits: Limits | None = None) -> None:
        self.tracker = ConditionTracker(limits)
        self.inventory = inventory
        self.held: dict[str, str] = {}
        self.told = 0
        self.see(Readings(cards=(reads(temperature_celsius=COOL, throttled_by=()),)), at=-1)

    def see(
        self,
        readings: Readings | None,
        *,
        at: float,
        own: frozenset[int] = frozenset(),
        troubles: tuple[tuple[str, str], ...] = (),
    ) -> dict[str, str]:
        """Return what holds after a sample: name to detail, each device before its name."""
        found = self.tracker.update(readings, own, at, self.inventory, troubles)
        if found is not None:
            self.told += 1
            self.held = {_key(c): c.detail for c in found}
        return self.held


def _key(condition: Condition) -> str:
    return f"{'node' if condition.device is None else condition.device} {condition.name}"


class TestHeat:
    def test_a_card_is_hot_only_after_it_has_been_too_warm_for_a_while(self) -> None:
        watch = Watch()
        assert watch.see(of_card(temperature_celsius=90), at=0) == {}
        assert watch.see(of_card(temperature_celsius=90), at=29) == {}
        hot = watch.see(of_card(temperature_celsius=90), at=30)
        assert hot == {"0 hot": "90 °C, limit 88 °C"}

    def test_a_short_peak_is_forgotten(self) -> None:
        watch = Watch()
        for at in range(0, 600, 20):
            celsius = 90 if at % 40 else 70
            assert watch.see(of_card(temperature_celsius=celsius), at=at) == {}

    def test_a_hot_card_stays_hot_until_it_has_been_clearly_cooler_for_a_while(self) -> None:
        watch = Watch()
        for at in (0, 30):
            watch.see(of_card(temperature_celsius=90), at=at)
        for at, celsius in ((31, 84), (40, 80), (45, 81), (50, 80), (59, 80)):
            assert watch.see(of_card(temperature_celsius=celsius), at=at).keys() == {"0 hot"}
        assert watch.see(of_card(temperature_celsius=80), at=60) == {}

    def test_the_distance_to_slowdown_counts_where_there_is_no_temperature(self) -> None:
        watch = Watch()
        for at in (0, 30):
            watch.see(Readings(cards=(reads(temperature_margin_celsius=1),)), at=at)
        assert watch.held == {"0 hot": "1 °C below its slowdown, limit 2 °C"}
        for at in (31, 41):
            watch.see(Readings(cards=(reads(temperature_margin_celsius=8),)), at=at)
        assert watch.held == {}

    def test_a_card_that_slows_down_early_is_hot_early(self) -> None:
        watch = Watch(offered(0, slowdown=80))
        for at in (0, 30):
            watch.see(of_card(temperature_celsius=81), at=at)
        assert watch.held == {"0 hot": "1 °C above its slowdown, limit 2 °C"}

    def test_it_is_hot_while_either_says_so(self) -> None:
        watch = Watch(offered(0, slowdown=90))
        for at in (0, 30):
            watch.see(of_card(temperature_celsius=89), at=at)
        both = "89 °C, limit 88 °C; 1 °C below its slowdown, limit 2 °C"
        assert watch.held == {"0 hot": both}
        margin_is_gone = of_card(temperature_celsius=COOL, temperature_margin_celsius=0)
        for at in (31, 50):
            assert watch.see(margin_is_gone, at=at).keys() == {"0 hot"}

    def test_the_heat_of_a_card_is_that_of_its_instances(self) -> None:
        one, three = instance_id(2, 1), instance_id(2, 3)
        watch = Watch(offered(1, one, three))
        hot = Readings(cards=(reads(2, temperature_celsius=95), reads(1, temperature_celsius=60)))
        assert watch.see(hot, at=0).keys() == {f"{one} hot", f"{three} hot"}

    def test_without_an_inventory_the_numbers_say_what_is_on_a_card(self) -> None:
        devices = (DeviceReading(id=1203, uuid="MIG-2-3"), DeviceReading(id=1, uuid="GPU-1"))
        hot = Readings(cards=(reads(2, temperature_celsius=95),), devices=devices)
        assert Watch(None).see(hot, at=0).keys() == {"1203 hot"}


class TestThrottling:
    @pytest.mark.parametrize(
        "reason",
        ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"],
    )
    def test_a_card_that_is_slowed_for_a_while_is_throttled(self, reason: str) -> None:
        watch = Watch()
        slow = of_card(throttled_by=("sync_boost", reason), clock_graphics_mhz=705)
        assert watch.see(slow, at=0) == {}
        assert watch.see(slow, at=30) == {"0 throttled": f"{reason}, 705 MHz"}
        assert watch.see(of_card(), at=40).keys() == {"0 throttled"}
        assert watch.see(of_card(), at=100) == {}

    @pytest.mark.parametrize("reason", ["sync_boost", "sw_power_cap", "a_word_of_tomorrow"])
    def test_other_reasons_for_low_clocks_are_not(self, reason: str) -> None:
        watch = Watch()
        for at in (0, 60):
            assert watch.see(of_card(throttled_by=(reason,)), at=at) == {}


class TestPower:
    def test_a_card_that_is_capped_for_long_is_power_capped(self) -> None:
        watch = Watch()
        capped = of_card(throttled_by=("sw_power_cap",))
        assert watch.see(capped, at=0) == watch.see(capped, at=299) == {}
        assert watch.see(capped, at=300) == {"0 power-capped": "sw_power_cap"}

    def test_a_card_at_its_limit_is_until_it_draws_clearly_less(self) -> None:
        watch = Watch()
        for at in (0, 300):
            watch.see(of_card(power_watts=393, power_limit_watts=400), at=at)
        assert watch.held == {"0 power-capped": "393 W of 400 W"}
        for at, watts in ((301, 380), (400, 370), (500, 360), (559, 360)):
            watch.see(of_card(power_watts=watts, power_limit_watts=400), at=at)
            assert watch.held.keys() == {"0 power-capped"}
        assert watch.see(of_card(power_watts=360, power_limit_watts=400), at=560) == {}

    @pytest.mark.parametrize("limit", [None, 0])
    def test_without_a_limit_no_draw_is_too_much(self, limit: float | None) -> None:
        watch = Watch()
        for at in (0, 300):
            assert watch.see(of_card(power_watts=700, power_limit_watts=limit), at=at) == {}


class TestWear:
    @pytest.mark.parametrize(
        ("wear", "said"),
        [
            (Wear(remap_failed=True), "a row of its memory could not be remapped"),
            (Wear(ecc_volatile_uncorrected=11), "11 errors that ECC could not correct, limit 10"),
            (Wear(remapped_rows=257), "257 remapped rows, limit 256"),
            (Wear(retired_pages=61), "61 retired pages, limit 60"),
        ],
    )
    def test_memory_that_failed_too_often_is_worn_at_once(self, wear: Wear, said: str) -> None:
        assert Watch().see(of_card(wear=wear), at=0) == {"0 worn": said}

    @pytest.mark.parametrize(
        ("wear", "said"),
        [
            (Wear(remap_pending=True), "a row of its memory waits for a reset to be remapped"),
            (Wear(retired_pending=True), "a page of its memory waits for a reset to be retired"),
        ],
    )
    def test_what_waits_to_be_replaced_is_told_and_keeps_nobody_out(
        self, wear: Wear, said: str
    ) -> None:
        assert Watch().see(of_card(wear=wear), at=0) == {"0 remap-pending": said}
        assert "remap-pending" in AVOIDED

    @pytest.mark.parametrize(
        "wear",
        [
            Wear(),
            Wear(ecc_volatile_uncorrected=10, remapped_rows=256, retired_pages=60),
            Wear(ecc_uncorrected=999, ecc_volatile_uncorrected=0, remap_failed=False),
            Wear(ecc_corrected=10**9),
        ],
    )
    def test_a_little_is_not(self, wear: Wear) -> None:
        assert Watch().see(of_card(wear=wear), at=0) == {}

    def test_all_that_speaks_for_it_is_told(self) -> None:
        held = Watch().see(of_card(wear=Wear(remap_failed=True, remapped_rows=300)), at=0)
        said = "a row of its memory could not be remapped; 300 remapped rows, limit 256"
        assert held == {"0 worn": said}

    def test_it_is_over_when_the_card_says_so_and_not_when_it_ceases_to_tell(self) -> None:
        watch = Watch()
        watch.see(of_card(wear=Wear(remap_failed=True)), at=0)
        for at in (10, 10_000):
            untold = Wear(
                ecc_volatile_uncorrected=0
            )  # carved by MIG: the driver does not count rows then
            assert watch.see(of_card(wear=untold), at=at).keys() == {"0 worn"}
        assert watch.see(of_card(wear=Wear(remap_failed=False)), at=10_010) == {}


class TestXid:
    @pytest.mark.parametrize("number", sorted(XIDS))
    def test_each_known_error_raises_what_the_table_says(self, number: int) -> None:
        held = Watch().see(of_card(xids=(number,)), at=0)
        error = XIDS[number]
        expected = {f"0 {error.condition}": f"Xid {number}: {error.meaning}"}
        assert held == (expected if error.condition else {})

    def test_an_error_that_is_not_in_the_table_makes_suspect(self) -> None:
        held = Watch().see(of_card(xids=(999,)), at=0)
        assert held == {"0 suspect": f"Xid 999: {UNLISTED.meaning}"}

    @pytest.mark.parametrize("number", [13, 31, 43, 45, 68])
    def test_what_a_program_did_wrong_says_nothing_of_the_card(self, number: int) -> None:
        assert Watch().see(of_card(xids=(number,)), at=0) == {}

    @pytest.mark.parametrize("number", [109, 119, 120])
    def test_what_lists_disagree_on_is_taken_for_one_that_needs_a_reset(self, number: int) -> None:
        assert Watch().see(of_card(xids=(number,)), at=0).keys() == {"0 xid"}

    def test_it_is_told_whether_memory_that_failed_goes_out_of_use(self) -> None:
        assert Watch().see(of_card(xids=(63,)), at=0) == {}
        for other, said in ((63, "was noted to be replaced"), (64, "could not be noted")):
            held = Watch().see(of_card(xids=(48, other)), at=0)
            assert held.keys() == {"0 xid"}
            assert "Xid 48" in held["0 xid"]
            assert said in held["0 xid"]

    def test_it_holds_while_the_driver_lists_it_and_ends_with_the_list(self) -> None:
        watch = Watch()
        watch.see(of_card(xids=(13, 48, 95)), at=0)
        assert watch.held.keys() == {"0 xid"}
        assert "Xid 48" in watch.held["0 xid"]
        assert "Xid 13" not in watch.held["0 xid"]
        assert watch.see(of_card(xids=(13, 48, 95)), at=10_000).keys() == {"0 xid"}
        assert watch.see(of_card(), at=10_001) == {}


class TestLoss:
    @pytest.mark.parametrize(
        "sample",
        [
            NOTHING,
            Readings(cards=(reads(xids=(13,)),)),
            Readings(cards=(reads(1, power_watts=70),)),
        ],
    )
    def test_a_card_that_answers_no_more_is_lost_and_nothing_else(self, sample: Readings) -> None:
        watch = Watch(offered(0, 1))
        watch.see(of_card(temperature_celsius=90), at=0)
        watch.see(of_card(temperature_celsius=90), at=30)
        assert watch.see(sample, at=31).keys() == {"0 hot"}
        assert watch.see(sample, at=60).keys() == {"0 hot"}
        lost = watch.see(sample, at=61)
        assert lost == {"0 lost": "it has not answered for 30 s or longer"}

    def test_it_is_back_when_it_has_answered_for_a_while(self) -> None:
        watch = Watch()
        for at in (0, 30):
            watch.see(NOTHING, at=at)
        assert watch.see(of_card(), at=40).keys() == {"0 lost"}
        assert watch.see(NOTHING, at=50).keys() == {"0 lost"}
        assert watch.see(of_card(), at=60).keys() == {"0 lost"}
        assert watch.see(of_card(), at=90) == {}

    def test_a_card_that_never_told_anything_is_not_lost(self) -> None:
        watch = Watch(offered(0, 1))
        for at in (0, 30, 600):
            mute = Readings(cards=(reads(temperature_celsius=COOL), reads(1)))
            assert watch.see(mute, at=at) == {}

    @pytest.mark.parametrize("sample", [None, Readings()])
    def test_a_sample_of_nothing_at_all_says_nothing_of_cards(
        self, sample: Readings | None
    ) -> None:
        watch = Watch()
        for at in (0, 30, 60):
            assert watch.see(sample, at=at) == {}

    def test_a_card_that_the_inventory_has_no_more_is_not_spoken_of(self) -> None:
        watch = Watch(offered(0, 1))
        watch.see(Readings(cards=(reads(0, power_watts=70), reads(1, power_watts=70))), at=0)
        for at in (1, 31):
            watch.see(Readings(cards=(reads(0, power_watts=70),)), at=at)
        assert watch.held.keys() == {"1 lost"}
        watch.inventory = ONE
        assert watch.see(of_card(), at=32) == {}


class TestStaleness:
    OLD = Readings(cards=(reads(age_seconds=40.0),))
    NEARLY = Readings(cards=(reads(age_seconds=29.0),))

    def test_values_that_stand_still_are_told_of_and_not_taken_for_a_lost_card(self) -> None:
        watch = Watch()
        assert watch.see(self.NEARLY, at=0) == {}
        for at in (11, 600):
            assert watch.see(self.OLD, at=at) == {"0 stale": "the same for 40 s"}
        assert watch.see(of_card(), at=601) == {}

    def test_what_held_before_is_neither_believed_for_ever_nor_over(self) -> None:
        watch = Watch()
        for at in (0, 30):
            watch.see(of_card(temperature_celsius=90), at=at)
        assert watch.see(self.OLD, at=60).keys() == {"0 hot", "0 stale"}
        assert watch.see(self.OLD, at=330).keys() == {"0 stale", "0 unmeasured"}


class TestOccupation:
    def test_a_device_that_others_use_is_occupied_until_they_have_left(self) -> None:
        watch = Watch()
        assert watch.see(held_mib(511), at=0) == watch.see(held_mib(512), at=1) == {}
        occupied = watch.see(held_mib(513), at=6)
        said = "processes that are not llmgw's hold 513 MiB: pid 4242"
        assert occupied == {"0 occupied": said}
        for at, mib in ((20, 300), (30, 256), (34, 256)):
            assert watch.see(held_mib(mib), at=at).keys() == {"0 occupied"}
        assert watch.see(held_mib(256), at=35) == {}

    def test_the_agents_own_engines_do_not_occupy_a_device(self) -> None:
        watch = Watch()
        for at in (0, 60):
            assert watch.see(held_mib(9000, pid=77), at=at, own=frozenset({77})) == {}

    def test_the_biggest_are_named_and_by_their_names_where_these_are_known(self) -> None:
        crowd = [Process(pid=n, memory_bytes=n * MIB) for n in (100, 300, 200, 50)]
        crowd.append(Process(pid=9, memory_bytes=900 * MIB, name="python3"))
        watch = Watch()
        for at in (0, 5):
            watch.see(used_by(*crowd), at=at)
        assert watch.held["0 occupied"].endswith("1550 MiB: pid 9 (python3), 300, 200 and 2 more")

    def test_memory_that_is_not_told_is_not_zero_and_occupies_nothing(self) -> None:
        watch = Watch()
        for at in (0, 5):
            assert watch.see(used_by(Process(pid=1)), at=at) == {}
        for at in (10, 15):
            watch.see(held_mib(600), at=at)
        for at in (20, 40):
            assert watch.see(used_by(Process(pid=1)), at=at).keys() == {"0 occupied"}
        for at in (50, 55):
            watch.see(used_by(), at=at)
        assert watch.held == {}

    def test_what_is_told_counts_beside_what_is_not(self) -> None:
        watch = Watch()
        for at in (0, 5):
            watch.see(used_by(Process(pid=1), Process(pid=2, memory_bytes=600 * MIB)), at=at)
        assert watch.held.keys() == {"0 occupied"}


class TestAbsence:
    def test_what_is_not_measured_neither_cools_nor_heats(self) -> None:
        watch = Watch()
        hot, untold = of_card(temperature_celsius=90), of_card(temperature_celsius=None)
        watch.see(hot, at=0)
        watch.see(untold, at=20)
        assert watch.see(hot, at=40) == {}, "40 s have passed, and none of them was measured"
        assert watch.see(hot, at=70).keys() == {"0 hot"}
        assert watch.see(untold, at=80).keys() == {"0 hot"}
        assert watch.see(of_card(), at=100).keys() == {"0 hot"}
        assert watch.see(of_card(), at=110) == {}

    @pytest.mark.parametrize("untold", [of_card(temperature_celsius=None), None])
    def test_a_condition_whose_value_does_not_come_any_more_is_unmeasured(
        self, untold: Readings | None
    ) -> None:
        watch = Watch()
        for at in (0, 30):
            watch.see(of_card(temperature_celsius=90), at=at)
        assert watch.see(untold, at=329).keys() == {"0 hot"}
        said = "hot when last measured, 300 s ago: 90 °C, limit 88 °C"
        assert watch.see(untold, at=330) == {"0 unmeasured": said}
        assert watch.see(of_card(temperature_celsius=85), at=400).keys() == {"0 hot"}

    def test_an_occupation_is_believed_no_longer_than_others(self) -> None:
        watch = Watch()
        for at in (0, 5):
            watch.see(held_mib(600), at=at)
        untold = Readings(
            cards=(reads(power_watts=70),), devices=(DeviceReading(id=0, uuid="GPU-0"),)
        )
        assert watch.see(untold, at=305).keys() == {"0 unmeasured"}

    def test_a_measured_zero_is_zero(self) -> None:
        watch = Watch()
        for at in (0, 30):
            watch.see(Readings(cards=(reads(temperature_margin_celsius=0),)), at=at)
        assert watch.held.keys() == {"0 hot"}
        for at in (40, 50):
            watch.see(of_card(temperature_celsius=0, temperature_margin_celsius=90), at=at)
        assert watch.held == {}


class TestTroubles:
    HUNG = (("tool-hung", "nvidia-smi has not ended for 40 s"),)

    def test_what_ails_the_node_holds_for_no_device(self) -> None:
        held = Watch().see(of_card(), at=0, troubles=self.HUNG)
        assert held == {"node tool-hung": "nvidia-smi has not ended for 40 s"}

    def test_it_is_told_where_nothing_can_be_measured(self) -> None:
        tracker = ConditionTracker()
        assert tracker.update(None, frozenset(), 0, None) is None
        told = tracker.update(None, frozenset(), 0, None, self.HUNG)
        assert told == (Condition(name="tool-hung", detail=self.HUNG[0][1]),)

    def test_it_ends_a_while_after_the_last_word_of_it(self) -> None:
        watch = Watch()
        for at in range(0, 200, 20):
            troubles = self.HUNG if at % 40 else ()
            held = watch.see(of_card(), at=at, troubles=troubles)
        assert held.keys() == {"node tool-hung"}
        assert watch.told == 2
        assert watch.see(of_card(), at=210) == {}


class TestTelling:
    def test_the_first_sample_always_gives_an_answer(self) -> None:
        assert ConditionTracker().update(of_card(), frozenset(), 0) == ()
        assert ConditionTracker().update(Readings(), frozenset(), 0) == ()

    def test_an_agent_that_comes_up_does_not_call_a_hot_card_cool(self) -> None:
        told = ConditionTracker().update(of_card(temperature_celsius=90), frozenset(), 0, ONE)
        assert told is not None
        assert [c.name for c in told] == ["hot"]

    def test_more_of_the_same_is_no_news_and_the_next_news_has_the_newest_numbers(self) -> None:
        watch = Watch()
        for at in (0, 30, 31, 32):
            watch.see(of_card(temperature_celsius=90 + at / 10), at=at)
        assert watch.told == 2
        watch.see(of_card(temperature_celsius=95, xids=(48,)), at=33)
        assert watch.held["0 hot"].startswith("95 °C")

    def test_after_forgetting_the_same_is_said_again(self) -> None:
        watch = Watch()
        watch.tracker.forget_what_was_said()
        watch.see(of_card(), at=0)
        assert watch.told == 2

    def test_those_of_the_node_come_first_and_then_by_device(self) -> None:
        watch = Watch(offered(0, 1, instance_id(2, 0)))
        cards = tuple(
            reads(i, temperature_celsius=95, wear=Wear(remap_failed=True)) for i in (2, 1)
        )
        watch.see(Readings(cards=cards), at=0, troubles=(("tool-hung", "so"),))
        assert list(watch.held) == ["node tool-hung", "1 hot", "1 worn", "1200 hot", "1200 worn"]


class TestLimits:
    def test_each_is_what_the_tracker_goes_by(self) -> None:
        early = Limits(hot_celsius=60, cool_celsius=55, hot_seconds=0, cool_seconds=0)
        watch = Watch(limits=early)
        assert watch.see(of_card(temperature_celsius=60), at=0).keys() == {"0 hot"}
        assert watch.see(of_card(temperature_celsius=55), at=1) == {}

    def test_the_defaults_leave_a_band_everywhere(self) -> None:
        assert list(contradictions(Limits())) == []
        for low, high in BANDS:
            assert getattr(Limits(), low) < getattr(Limits(), high)

    @pytest.mark.parametrize(("low", "high"), BANDS)
    def test_limits_that_cross_are_named(self, low: str, high: str) -> None:
        crossed = msgspec.structs.replace(Limits(), **{low: getattr(Limits(), high) + 1})
        assert list(contradictions(crossed)) == [(low, high)]


class TestAgent:
    def test_its_limits_are_those_of_its_policy(self) -> None:
        early = Limits(hot_celsius=60, cool_celsius=55, hot_seconds=0)
        agent = Agent(policy=Policy(limits=early)).up()
        agent.when(s.SampleTaken(of_card(), {})).then("publish node.conditions none")
        agent.when(s.SampleTaken(of_card(temperature_celsius=61), {}))
        agent.then("publish node.conditions 0 hot")

    def test_what_ails_the_node_is_told_beside_hardware_that_cannot_be_read(self) -> None:
        agent = Agent().up().given(s.HardwareUnreadable("no answer"))
        hung = s.HardwareUnreadable("no answer", TestTroubles.HUNG)
        (told,) = published(agent.when(hung))
        assert isinstance(told, e.NodeConditionsChanged)
        assert told.conditions[0] == Condition(name="tool-hung", detail=TestTroubles.HUNG[0][1])
        assert [(c.device, c.name) for c in told.conditions[1:]] == [
            (0, "unreadable"),
            (1, "unreadable"),
        ]
        agent.when(hung, after=10).then()
        agent.when(s.HardwareUnreadable("no answer"), after=31)
        agent.then("publish node.conditions 0 unreadable, 1 unreadable")


class TestMeanings:
    def test_every_name_has_a_meaning_and_something_to_do(self) -> None:
        raised = {"hot", "throttled", "power-capped", "worn", "lost", "occupied", "unmeasured"}
        raised |= {x.condition for x in (*XIDS.values(), UNLISTED) if x.condition is not None}
        assert raised <= MEANINGS.keys()
        assert MEANINGS.keys() >= AVOIDED
        assert all(meaning and advice for meaning, advice in MEANINGS.values())

    def test_the_command_is_for_the_card(self) -> None:
        assert (
            what_to_do("xid", 3)
            == "llmgw agent release, then nvidia-smi --gpu-reset -i 3, or reboot"
        )
        assert what_to_do("xid") == MEANINGS["xid"][1]
        assert what_to_do("of-tomorrow", 3) is None


def test_one_look_at_a_machine_shows_what_holds_there() -> None:
    inventory = offered(0, 1)
    warm = msgspec.structs.replace(inventory.cards[1], temperature_celsius=91.0)
    seen = msgspec.structs.replace(inventory, cards=(inventory.cards[0], warm))
    assert [(c.device, c.name) for c in at_a_glance(seen)] == [(1, "hot")]
    assert at_a_glance(inventory) == ()
