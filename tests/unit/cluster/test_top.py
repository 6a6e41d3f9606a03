"""What `kvquilt top` shows: figures of two instants against plain arithmetic, and how they are told."""

from __future__ import annotations

import io
import itertools
import json
from bisect import bisect_left
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cluster.cli import top_command
from cluster.cli.main import main
from cluster.cli.top_command import screen_of
from cluster.cli.top_figures import MetricsLook, figures_of, quantile
from shared.errors import PermissionDenied, Unavailable

BOUNDS = (0.1, 0.5, 1.0, float("inf"))
URL = "http://127.0.0.1:1/metrics"


def text(answers: int, first_tokens: list[float], restarted: bool = False) -> str:
    buckets = [sum(t <= bound for t in first_tokens) for bound in BOUNDS]
    ttft = "kvquilt_answer_time_to_first_token_seconds"
    lines = [
        "# TYPE kvquilt_answers counter",
        f'kvquilt_answers_total{{mode="reordered",code="OK",replica="a"}} {answers}',
        f'kvquilt_answers_total{{mode="full",code="OVERLOADED",replica="a"}} {answers // 4}',
        f"# TYPE {ttft} histogram",
        *(
            f'{ttft}_bucket{{mode="reordered",le="{bound}"}} {n}'
            for bound, n in zip(("0.1", "0.5", "1.0", "+Inf"), buckets, strict=True)
        ),
        "# TYPE kvquilt_prompt_tokens_by_source counter",
        f'kvquilt_prompt_tokens_by_source_total{{source="local_cache_hit"}} {answers * 60}',
        f'kvquilt_prompt_tokens_by_source_total{{source="external_kv_transfer"}} {answers * 30}',
        f'kvquilt_prompt_tokens_by_source_total{{source="local_compute"}} {answers * 10}',
        "# TYPE kvquilt_store_chunks gauge",
        'kvquilt_store_chunks{tier="disk"} 7',
        "# TYPE kvquilt_store_bytes gauge",
        'kvquilt_store_bytes{tier="disk"} 7e9',
        "# TYPE kvquilt_loaded_chunks counter",
        f'kvquilt_loaded_chunks_total{{tier="disk"}} {1 if restarted else answers}',
        "# TYPE process_resident_memory_bytes gauge",
        'process_resident_memory_bytes{application="generator",replica="a"} 1e9',
        'process_resident_memory_bytes{application="generator",replica="b"} 2e9',
    ]
    return "\n".join(lines) + "\n"


BEFORE = MetricsLook([text(100, [0.2])], 10.0)
NOW = MetricsLook(
    [text(120, [0.2, 0.05, 0.3, 0.4, 0.4], restarted=True), "kvquilt_num_requests_waiting 3\n"], 14.0
)


def test_figures_are_those_of_the_time_between() -> None:
    f = figures_of(BEFORE, NOW)
    assert (f.over_s, f.answers_per_s) == (4.0, 25 / 4)
    assert f.by_mode_per_s == {"reordered": 5.0, "full": 5 / 4}
    assert f.failures_per_s == {"OVERLOADED": 5 / 4}
    assert f.prompt_share == {"memory": 0.6, "store": 0.3, "computed": 0.1}
    assert f.ttft_p50_s == pytest.approx(0.1 + 0.4 / 3)  # the second of four, in (0.1, 0.5] with two more
    assert f.token_p50_s is None
    assert f.waiting == 3
    assert f.tiers["disk"].loaded_per_s == 1 / 4  # a process began anew, and counts from 0
    assert (f.tiers["disk"].chunks, f.tiers["disk"].num_bytes) == (7, 7e9)
    assert (f.services["generator"].replicas, f.services["generator"].memory_bytes) == (2, 3e9)


def test_nothing_that_happened_is_told_as_nothing() -> None:
    f = figures_of(NOW, NOW)
    assert (f.answers_per_s, f.ttft_p50_s, f.prompt_share, f.failures_per_s) == (0, None, {}, {})


@given(st.lists(st.floats(0, 3), min_size=1, max_size=50), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_in_the_bucket_of_the_value_that_it_stands_for(
    times: list[float], share: float
) -> None:
    found = quantile([(bound, sum(t <= bound for t in times)) for bound in BOUNDS], share)
    nth = next(t for i, t in enumerate(sorted(times), 1) if i >= share * len(times))
    bucket = bisect_left(BOUNDS, nth)
    assert found is not None
    assert (0.0, *BOUNDS)[bucket] - 1e-9 <= found <= min(BOUNDS[bucket], 1.0) + 1e-9


@pytest.mark.parametrize("width", [40, 120])
def test_the_screen_fits_a_narrow_terminal(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(screen_of(figures_of(BEFORE, NOW)))
    shown = out.getvalue()
    for wanted in ("answers/s", "OVERLOADED 1.2", "disk", "7.0 GB", "generator", "3.0 GB"):
        assert wanted in shown
    assert max(map(len, shown.splitlines())) <= width


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the address tells, one look after the other, without any time in between."""

    def set_told(*texts: str) -> None:
        looks = itertools.chain(texts, itertools.repeat(KeyboardInterrupt()))

        def tell(pool: object, address: str) -> str:
            if isinstance(look := next(looks), KeyboardInterrupt):
                raise look
            return look

        monkeypatch.setattr(top_command, "_told", tell)
        monkeypatch.setattr(top_command.time, "sleep", lambda seconds: None)

    return set_told


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, [*args])


def test_programs_are_told_a_line_per_look_until_it_is_ended(told: Callable[..., None]) -> None:
    told(text(100, []), text(101, []), text(103, []))
    result = invoke("top", "--metrics", URL, "--output", "json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [set(line["by_mode_per_s"]) for line in lines] == [{"reordered"}, {"reordered"}]
    assert result.exit_code == 130


def test_once_is_one_look(told: Callable[..., None]) -> None:
    told(text(100, []), text(101, [0.2]))
    result = invoke("top", "--metrics", URL, "--once")
    assert (result.exit_code, result.stdout.count("answers/s")) == (0, 1)


def test_without_a_terminal_every_look_is_printed(told: Callable[..., None]) -> None:
    told(*(text(n, []) for n in range(4)))
    assert invoke("top", "--metrics", URL).stdout.count("answers/s") == 3


def test_what_is_no_text_of_prometheus_is_said(told: Callable[..., None]) -> None:
    told("<html>", "<html>")
    result = invoke("top", "--metrics", URL, "--once")
    assert result.exit_code == 4
    assert "no text of Prometheus's" in result.stderr


def test_a_server_elsewhere_must_be_named() -> None:
    result = invoke("--target", "elsewhere:9000", "top")
    assert (result.exit_code, "--metrics: name where" in result.stderr) == (2, True)


class Pool:
    def __init__(self, status: int) -> None:
        self.status = status

    def request(self, *_: object, **__: object) -> Pool:
        return self

    def read(self, _: int) -> bytes:
        return b"x"

    def release_conn(self) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "error"), [(403, PermissionDenied), (401, PermissionDenied), (500, Unavailable)]
)
def test_an_answer_that_is_none_is_told_by_what_to_do(status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=URL):
        top_command._told(Pool(status), URL)  # type: ignore[arg-type]
