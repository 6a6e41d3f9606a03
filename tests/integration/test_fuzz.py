"""A few seconds of what `make fuzz` does for as long as one likes."""

from __future__ import annotations

from tests.fuzz.rounds import fuzz_files


def test_no_file_ends_as_an_internal_error_or_takes_more_than_it_may() -> None:
    findings = fuzz_files(seconds=10.0, seed=1)
    assert findings.wrong == []
    assert findings.rounds
