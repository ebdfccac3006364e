"""Is a machine with another Moesaic, or with other files, kept out of a study?"""

from __future__ import annotations

from pathlib import Path

import pytest

from moesaic.cluster.same_version import Version, refuse_others, version
from moesaic.core.errors import ImpossibleSetting

OWN = Version("0.1.0", "a" * 64, "3.11.7")


def test_equal_machines_are_taken() -> None:
    refuse_others({"10.0.0.1": OWN, "10.0.0.2": Version(*OWN)}, OWN)
    assert version() == version()
    assert version().package


@pytest.mark.parametrize(
    "theirs",
    [
        OWN._replace(package="0.2.0"),
        OWN._replace(sources="b" * 64),
        OWN._replace(python="3.12.1"),
        "No module named 'moesaic'",
    ],
)
def test_other_machines_are_named(theirs: Version | str) -> None:
    with pytest.raises(ImpossibleSetting, match=r"machine 10\.0\.0\.2 ") as refusal:
        refuse_others({"10.0.0.1": OWN, "10.0.0.2": theirs}, OWN)
    assert "the same" in str(refusal.value)


def test_files_must_be_the_same_on_all_machines(tmp_path: Path) -> None:
    trace = tmp_path / "routing.npz"
    missing = version([str(trace)])
    trace.write_bytes(b"one")
    here = version([str(trace)])
    trace.write_bytes(b"two")
    for there in (missing, version([str(trace)])):
        with pytest.raises(ImpossibleSetting, match=r"routing\.npz.*same path on all machines"):
            refuse_others({"10.0.0.2": there}, here, [str(trace)])
