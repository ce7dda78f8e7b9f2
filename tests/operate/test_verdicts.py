"""States, judged over a window of observations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tidegate.operate.states import SETTLING, Observation, Rewind, State, verdict, worst

WINDOW = 60.0


def seen(*points: tuple[float, int, int | None], owned: bool = True) -> list[Observation]:
    return [Observation(at, position, end, owned) for at, position, end in points]


def judged(*points: tuple[float, int, int | None], **options: object) -> State:
    return verdict(seen(*points), window=WINDOW, **options)  # type: ignore[arg-type]


def test_a_partition_at_its_end_is_ok() -> None:
    assert judged((0, 100, 100)) is State.OK
    assert judged((0, 100, 100), (60, 100, 100)) is State.OK
    assert judged((0, 100, 100), (60, 900, 900)) is State.OK


def test_whatever_lag_there_is_a_partition_that_gains_on_its_end_is_ok() -> None:
    assert judged((0, 0, 10_000_000), (60, 50_000, 10_000_000)) is State.OK
    assert judged((0, 0, 10_000_000), (60, 50_000, 10_040_000)) is State.OK


def test_one_that_moves_and_falls_behind_is_lagging() -> None:
    assert judged((0, 1000, 1100), (60, 2000, 3000)) is State.LAGGING


def test_a_batch_under_way_is_no_lag_that_grows() -> None:
    saw = [(float(at), at * 100, at * 100 + (at % 3) * 50) for at in range(0, 61, 2)]
    assert judged(*saw) is State.OK
    assert judged((0, 1000, 1000), (60, 7000, 7050)) is State.OK, "less than a tenth of what was read"


def test_records_that_wait_for_a_whole_window_are_a_stall() -> None:
    assert judged((0, 5, 9), (30, 5, 9), (60, 5, 12)) is State.STALLED
    assert judged((1, 5, 9), (59, 5, 12)) is State.OK, "not for so long yet"
    assert judged((0, 5, 5), (40, 5, 9), (60, 5, 9)) is State.OK, "there was nothing to read at first"
    assert judged((0, 4, 9), (30, 5, 9), (60, 5, 9)) is State.OK, "it moved within the window"
    assert judged((0, 5, None), (60, 5, 9)) is State.OK, "nobody knows whether there was something to read"


def test_a_window_that_was_rounded_is_a_whole_window() -> None:
    for now in (1794755964.1234567, 1794755964.0000004, 1794755964.9999996):
        since = (datetime.fromtimestamp(now, UTC) - timedelta(seconds=WINDOW)).timestamp()
        assert judged((since, 5, 9), (now, 5, 9)) is State.STALLED


def test_time_without_an_owner_does_not_count_as_a_stall() -> None:
    saw = [*seen((0, 5, 9), owned=False), *seen((50, 5, 9), (60, 5, 9))]
    assert verdict(saw, window=WINDOW) is State.OK


def test_without_an_owner_it_is_stopped_if_something_may_be_unread_and_else_idle() -> None:
    for end in (6, 500, None):
        assert verdict(seen((0, 5, end), owned=False), window=WINDOW) is State.STOPPED
    assert verdict(seen((0, 5, 5), owned=False), window=WINDOW) is State.IDLE


def test_a_position_that_was_moved_back_is_rewound_until_it_is_where_it_was() -> None:
    edit = [Rewind(10.0, 500)]
    assert judged((0, 500, 500), (30, 120, 500), rewinds=edit) is State.REWOUND
    assert judged((0, 500, 500), (30, 500, 500), rewinds=edit) is State.OK
    assert judged((0, 500, 900), (30, 700, 900), rewinds=edit) is State.OK


def test_after_an_edit_the_owner_has_some_time_to_claim_again() -> None:
    fenced = seen((30.0, 120, 500), owned=False)
    assert verdict(fenced, window=WINDOW, rewinds=[Rewind(30.0 - SETTLING / 2, 500)]) is State.REWOUND
    assert verdict(fenced, window=WINDOW, rewinds=[Rewind(30.0 - SETTLING - 1, 500)]) is State.STOPPED


def test_what_is_paused_is_paused_and_nothing_else() -> None:
    assert judged((0, 5, 9), (60, 5, 9), paused=True) is State.PAUSED
    assert verdict(seen((0, 5, 9), owned=False), window=WINDOW, paused=True) is State.PAUSED


def test_without_the_end_of_the_log_it_is_not_known() -> None:
    assert judged((0, 5, None), (60, 8, None)) is State.UNKNOWN
    assert judged((0, 5, None), (60, 8, 8)) is State.OK


def test_the_gravest_state_stands_for_all() -> None:
    assert worst([]) is State.OK
    assert worst([State.OK, State.LAGGING, State.STALLED, State.REWOUND]) is State.STALLED
    assert worst([State.OK, State.UNKNOWN]) is State.UNKNOWN
    assert worst([State.LAGGING, State.STOPPED]) is State.STOPPED
    assert {worst([state]) for state in State} == set(State)


observations = st.lists(
    st.builds(
        Observation,
        st.floats(0, 1000),
        st.integers(0, 10_000),
        st.one_of(st.none(), st.integers(0, 20_000)),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
).map(lambda found: sorted(found, key=lambda each: each.at))


@given(observations)
def test_no_lag_is_never_an_alarm(found: list[Observation]) -> None:
    now = found[-1]
    caught_up = [*found[:-1], now._replace(end=now.position, owned=True)]
    assert verdict(caught_up, window=WINDOW) is State.OK


@given(observations, st.integers(1, 10_000))
def test_moving_the_clock_and_the_log_changes_no_verdict(found: list[Observation], by: int) -> None:
    moved = [
        Observation(each.at + 4096.0, each.position + by, None if each.end is None else each.end + by, each.owned)
        for each in found
    ]
    before = [each._replace(at=float(round(each.at))) for each in found]
    after = [each._replace(at=float(round(old.at)) + 4096.0) for each, old in zip(moved, found, strict=True)]
    assert verdict(before, window=WINDOW) is verdict(after, window=WINDOW)


@given(observations)
def test_a_stall_is_a_whole_window_without_a_move(found: list[Observation]) -> None:
    if verdict(found, window=WINDOW) is State.STALLED:
        now = found[-1]
        still = [each for each in found if each.at >= now.at - WINDOW + 0.001]
        assert all(each.position == now.position and each.owned and each.lag != 0 for each in still)
        assert found[0].at <= now.at - WINDOW + 0.001
