from __future__ import annotations

import pytest

from tidegate.kafka.partitioners import RoundRobin, java_partition, murmur2

# Made with org.apache.kafka.common.utils.Utils.murmur2 of Kafka 4.3.1; tests/kafka/producer compares many more with it.
KNOWN = {
    b"": 275646681,
    b"a": 2731586172,
    b"ab": 316155434,
    b"abc": 479470107,
    b"abcd": 2971317748,
    b"a longer key, with more than a few words in it": 3747359488,
    bytes(range(256)): 2346620022,
}


@pytest.mark.parametrize(("key", "hashed"), KNOWN.items())
def test_the_hash_is_the_one_of_the_java_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed


def test_the_partition_of_a_key_is_below_the_count_and_always_the_same() -> None:
    for partitions in (1, 2, 7, 1000):
        chosen = [java_partition(b"%d" % number, partitions) for number in range(500)]
        assert chosen == [java_partition(b"%d" % number, partitions) for number in range(500)]
        assert set(chosen) <= set(range(partitions))
    assert len({java_partition(b"%d" % number, 7) for number in range(500)}) == 7


def test_round_robin_goes_over_all_partitions_and_over_those_that_are_added() -> None:
    choose = RoundRobin()
    assert [choose(None, None, 3) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert sorted(choose(None, None, 5) for _ in range(5)) == [0, 1, 2, 3, 4]
