"""How models could run on the classes of small clusters: splits, counts, head-room, refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Model
from llmgw.hardware.classes import card_class
from llmgw.models.by_hand import by_hand
from llmgw.models.config_model import config_metadata
from llmgw.models.types import Metadata, Unknown
from llmgw.testing.builders import (
    Story,
    applied,
    card,
    elected,
    entry,
    instance,
    joined,
    processor,
    serving,
)
from llmgw.views.plan import (
    MOST_COUNTED,
    WELL_KNOWN,
    DeviceClass,
    ModelPlan,
    Offer,
    Wish,
    device_classes,
    plan,
)
from tests.models.published import GIB, MODELS


def cluster(nodes: int = 2, cards: int = 4, gib: float = 48) -> Story:
    """Nodes whose cards share an NVLink domain each."""
    found = [
        joined(
            f"n{n}", *(card(i, gib=gib, domain=f"d{n}", uuid=f"GPU-{n}-{i}") for i in range(cards))
        )
        for n in range(nodes)
    ]
    return Story().given(*(fact for node in found for fact in node), elected())


def wish(metadata: Metadata | Unknown | None = None, **fields: Any) -> Wish:  # noqa: ANN401
    values: dict[str, Any] = {
        "gib": 0,
        "engine": "vllm",
        "context": 8192,
        "memory_estimated": True,
    } | fields
    return Wish(entry=entry("m", **values), metadata=metadata or by_hand(10 * GIB, 1 << 16))


def planned(asked: Wish, state: Cluster) -> ModelPlan:
    return plan(asked, state, device_classes(state))


def splits(offers: tuple[Offer, ...]) -> list[tuple[int, int, int, int]]:
    return [(offer.gpus, offer.tp, offer.pp, offer.nodes) for offer in offers]


def test_classes_are_counted_with_their_instances_and_the_processor() -> None:
    carved = card(0, of_class="a100-80g", gib=80, mig=True)
    small = [instance(carved, n, gib=9.5, profile="1g.10gb") for n in range(3)]
    state = (
        Story()
        .given(
            *joined("n1", carved, *small, processor(64), card(1)),
            *joined("n2", card(0, uuid="GPU-x")),
        )
        .state
    )
    found = {one.name: one for one in device_classes(state)}
    assert [*found] == ["a100-80g-mig-1g.10gb", "cpu", "l40s-48g"]
    assert {
        name: (one.devices, one.on_a_node, one.nodes, one.single) for name, one in found.items()
    } == {
        "a100-80g-mig-1g.10gb": (3, 3, 1, True),
        "cpu": (1, 1, 1, True),
        "l40s-48g": (2, 1, 2, False),
    }


class TestOffers:
    def test_the_smallest_splits_that_fit_come_first_with_what_is_left(self) -> None:
        ((first, *_),) = [planned(wish(), cluster().state).offers]
        assert splits((first,)) == [(1, 1, 1, 1)]
        assert first.memory_bytes is not None
        assert first.headroom_bytes == 48 * GIB - first.memory_bytes
        assert (first.devices, first.fits_now, first.fits_empty, first.reason) == (8, 8, 8, None)
        assert first.largest_context is not None
        assert first.largest_context > 8192

    def test_a_group_takes_as_many_cards_as_it_must(self) -> None:
        offers = planned(wish(by_hand(120 * GIB, 1 << 16)), cluster().state).offers
        assert splits(offers) == [(4, 4, 1, 1), (8, 4, 2, 2)]
        assert (offers[0].fits_now, offers[0].fits_empty) == (2, 2)

    def test_what_no_node_holds_goes_over_several_if_placement_can_do_that(self) -> None:
        asked = planned(wish(by_hand(300 * GIB, 1 << 16)), cluster().state)
        (offer,) = asked.offers
        assert splits((offer,)) == [(8, 4, 2, 2)]
        assert (offer.fits_empty == 1) is asked.fits is (offer.reason is None)

    def test_heads_that_cannot_be_shared_evenly_are_not_tried(self) -> None:
        heads = replace(by_hand(10 * GIB, 1 << 16), attention_heads=14)
        offers = planned(wish(heads), cluster(nodes=1).state).offers
        assert splits(offers) == [(1, 1, 1, 1), (2, 2, 1, 1)]

    def test_llama_cpp_shares_layers_and_stays_on_one_node(self) -> None:
        offers = planned(wish(by_hand(120 * GIB, 1 << 16), engine="llama.cpp"), cluster().state)
        assert splits(offers.offers) == [(4, 1, 4, 1)]

    def test_of_mig_instances_there_is_one_or_none(self) -> None:
        carved = card(0, of_class="a100-80g", gib=80, mig=True)
        parts = [instance(carved, n, gib=20) for n in range(4)]
        state = Story().given(*joined("n1", carved, *parts), elected()).state
        (fitting,) = planned(wish(), state).offers
        assert (splits((fitting,)), fitting.fits_now) == ([(1, 1, 1, 1)], 4)
        (refused,) = planned(wish(by_hand(30 * GIB, 1 << 16)), state).offers
        assert refused.reason is not None
        assert refused.reason.startswith("too small by ")
        assert (splits((refused,)), refused.fits_empty) == ([(1, 1, 1, 1)], None)

    def test_where_nothing_fits_the_largest_group_says_by_how_much(self) -> None:
        asked = planned(wish(by_hand(1000 * GIB, 1 << 16)), cluster(nodes=1).state)
        (offer,) = asked.offers
        assert not asked.fits
        assert "on each of 4 devices" in str(offer.reason)
        assert offer.memory_bytes is not None

    def test_a_fraction_of_the_device_is_all_that_counts(self) -> None:
        (offer, *_) = planned(wish(gpu_memory_fraction=0.5), cluster().state).offers
        assert offer.memory_bytes is not None
        assert offer.headroom_bytes == 24 * GIB - offer.memory_bytes

    def test_what_runs_counts_now_and_not_if_the_cluster_were_empty(self) -> None:
        nodes = [joined("n1", *(card(i) for i in range(4)))]
        state = serving(entry("other", gib=40, replicas=3), nodes=nodes).state
        (offer, *_) = planned(wish(), state).offers
        assert (offer.fits_now, offer.fits_empty) == (1, 4)

    def test_devices_that_nothing_may_be_placed_on_are_told(self) -> None:
        story = cluster(nodes=1).when(e.NodeCordoned(node="n0"))
        asked = planned(wish(), story.state)
        assert (asked.offers[0].fits_now, asked.offers[0].fits_empty) == (0, 0)
        assert "cordoned" in str(asked.offers[0].reason)
        assert not asked.fits

    def test_counting_ends_somewhere(self) -> None:
        state = Story().given(*joined("n1", processor(1 << 20)), elected()).state
        small = wish(by_hand(1 << 20, 1), engine="llama.cpp", share=True)
        (offer,) = planned(small, state).offers
        assert offer.fits_now is not None
        assert 0 < offer.fits_now <= MOST_COUNTED
        few = plan(small, state, device_classes(state), most=3)
        assert (few.offers[0].fits_now, few.counted_to) == (3, 3)

    def test_counting_changes_nothing(self) -> None:
        state = cluster().state
        before = msgspec.json.encode(state)
        planned(wish(), state)
        assert msgspec.json.encode(state) == before


class TestEstimates:
    def test_the_parts_are_shown_with_what_was_assumed(self) -> None:
        found = planned(wish(config_metadata("c", MODELS["Llama 3.1 8B"].config)), cluster().state)
        assert found.architecture == "llama"
        assert found.memory_bytes == sum(part.bytes for part in found.parts)
        assert (found.context, found.parallel) == (8192, 1)
        assert found.given_bytes is None

    def test_files_that_cannot_be_read_leave_the_entrys_own_memory(self) -> None:
        asked = wish(Unknown(reason="not here"), gib=20, memory_estimated=False, gpus=2, tp=2)
        found = planned(asked, cluster().state)
        assert (found.unknown, found.memory_bytes, found.given_bytes) == (
            "not here",
            None,
            20 * GIB,
        )
        assert splits(found.offers) == [(2, 2, 1, 1)]
        assert found.offers[0].fits_now == 4

    def test_without_any_size_nothing_is_offered(self) -> None:
        found = planned(wish(Unknown(reason="not here")), cluster().state)
        assert not found.fits
        assert [offer.reason for offer in found.offers] == ["not here"]

    def test_an_engine_of_the_operators_own_needs_memory(self) -> None:
        found = planned(wish(engine="command", gib=0), cluster().state)
        assert "give `memory`" in str(found.unknown)
        assert not found.fits

    def test_the_error_of_the_estimate_shows_once_it_was_measured(self) -> None:
        one: Entry = wish().entry
        measured = planned(
            replace(wish(), model=Model(entry=one, one=one, measured_bytes=10 * GIB)),
            cluster().state,
        )
        assert measured.memory_bytes is not None
        expected = round(100 * (measured.memory_bytes / (10 * GIB) - 1), 1)
        assert (measured.measured_bytes, measured.error_percent) == (10 * GIB, expected)
        assert measured.offers[0].memory_bytes == int(10 * GIB * 1.05)


def test_without_a_cluster_well_known_cards_are_offered_and_nothing_counted() -> None:
    found = plan(wish(), None, WELL_KNOWN)
    assert found.fits
    assert {offer.device_class for offer in found.offers} == {one.name for one in WELL_KNOWN}
    assert all(
        (offer.devices, offer.fits_now, offer.fits_empty) == (None, None, None)
        for offer in found.offers
    )


@pytest.mark.parametrize("one", [one for one in WELL_KNOWN if not one.single], ids=str)
def test_well_known_classes_are_named_as_devices_are(one: DeviceClass) -> None:
    product = one.name.rpartition("-")[0]
    assert card_class(f"NVIDIA {product}", one.memory_bytes) == one.name


def test_a_catalog_in_force_is_planned_as_it_is() -> None:
    story = cluster().given(applied(entry("m", gib=20, replicas=2))).decided()
    model = story.state.models["m"]
    found = planned(
        Wish(entry=model.entry, metadata=Unknown(reason="elsewhere"), model=model), story.state
    )
    assert found.offers[0].fits_now == 6
