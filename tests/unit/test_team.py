"""How many compute threads there are and where they run."""

import pytest

from llmsrv import _core
from llmsrv.config import EngineOptions
from llmsrv.team import Team, choose_team, processor_limit


@pytest.fixture
def machine(monkeypatch):
    """Sets what the machine is."""

    def be(cores, limit=None):
        monkeypatch.setattr(_core, "core_processors", lambda: list(cores))
        monkeypatch.setattr("llmsrv.team.processor_limit", lambda: limit)

    return be


def team(**asked):
    return choose_team(EngineOptions(model="m", **asked))


@pytest.mark.parametrize(
    ("cores", "limit", "asked", "expected"),
    [
        ([0, 2, 4, 6], None, {}, Team(4, (0, 2, 4, 6))),
        ([0, 2, 4, 6], None, {"threads": 4}, Team(4, (0, 2, 4, 6))),
        ([0, 2, 4, 6], None, {"pin_threads": False}, Team(4)),
        # Fewer than the cores: the system knows better who else is there.
        ([0, 2, 4, 6], None, {"threads": 2}, Team(2)),
        ([0, 2, 4, 6], None, {"reserve_cpus": 1}, Team(3)),
        ([0, 2, 4, 6], None, {"threads": 2, "pin_threads": True}, Team(2, (4, 6))),
        ([0, 2, 4, 6], None, {"reserve_cpus": 1, "pin_threads": True}, Team(3, (2, 4, 6))),
        # More than the cores.
        ([0, 1], None, {"threads": 3}, Team(3)),
        # One core is the whole choice.
        ([5], None, {}, Team(1)),
        ([5], None, {"reserve_cpus": 3}, Team(1)),
        # A container gets less time than it sees cores.
        ([0, 1, 2, 3], 2.5, {}, Team(2)),
        ([0, 1, 2, 3], 0.5, {}, Team(1)),
        ([0, 1, 2, 3], 3.0, {"reserve_cpus": 1}, Team(2)),
        ([0, 1, 2, 3], 2.0, {"threads": 4}, Team(4)),
        ([0, 1], 4.0, {}, Team(2, (0, 1))),
    ],
)
def test_what_is_left_open_follows_the_machine(machine, cores, limit, asked, expected):
    machine(cores, limit)
    assert team(**asked) == expected


def test_what_cannot_be_is_refused(machine):
    machine([0, 1])
    with pytest.raises(ValueError, match="pin_threads: 3 threads need as many cores, this process may use 2"):
        team(threads=3, pin_threads=True)
    with pytest.raises(ValueError, match="reserve_cpus: 2 leaves no core: this process may use 2"):
        team(reserve_cpus=2)
    with pytest.raises(ValueError, match="reserve_cpus: cannot be combined with threads"):
        team(reserve_cpus=1, threads=1)
    with pytest.raises(ValueError, match="reserve_cpus: must not be negative"):
        team(reserve_cpus=-1)


def test_it_says_what_was_chosen():
    assert Team(2).placement == "placed by the system"
    assert Team(1, (3,)).placement == "pinned to processor 3"
    assert Team(2, (0, 4)).placement == "pinned to processors 0, 4"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, None),
    ],
)
def test_the_limit_of_a_container(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert processor_limit(tmp_path) == expected
