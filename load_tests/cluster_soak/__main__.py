"""Soaks a whole stack on this machine: callers ask, and bring, change and remove documents, while its
processes are killed, hang or run out of memory, its object store is away, slow or lies, its Milvus is away
or hangs, its disk and its shared memory are full, and its clock jumps.

    python -m load_tests.cluster_soak --seconds 300            a stack with embedded defaults
    python -m load_tests.cluster_soak --seconds 300 --objects  one with a real S3 server
    python -m load_tests.cluster_soak --seconds 300 --index    one with a Milvus server
    python -m load_tests.cluster_soak --only proxy --only agent    some faults alone

A fault strikes every --every seconds, each kind once before one strikes again. Throughout, callers may only
be told errors that say that the same call may work later (and who writes, that a disk is full); no call may
hang; an answer that ends well must be whole and what it was before; after each fault all callers must have
answers again within two minutes. At the end every acknowledged document must be there and found by what it
says, every copy of a chunk must verify, and the processes that lived all the time must hold about as many
threads, files and bytes as before. Exit code 0 then, with a table of the faults: what callers were told, and
after how long all was well; and what could not be done here, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from load_tests.benchmark import Violation, at_least, new_parser, option, say
from load_tests.cluster_soak.fault import ASKS, WRITES
from load_tests.cluster_soak.faults import faults_of
from load_tests.cluster_soak.ledger import FaultLedger
from load_tests.cluster_soak.soak import Soak
from load_tests.cluster_soak.surroundings import surroundings
from load_tests.servers.stack_processes import StackProcesses
from load_tests.service.demo_cluster import demo_towns
from shared.errors import InvalidRequest, KvquiltError

TOWNS = "towns"
_TABLE_WIDTH = 120


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 every promise was kept, 1 one was broken, 2 wrong input, 130 interrupted."""
    parser = new_parser("load_tests.cluster_soak", __doc__)
    option(parser, "--seconds", 300.0, "how long", type=at_least(1.0))
    option(parser, "--every", 20.0, "seconds from a fault to the next one", type=at_least(1.0))
    option(parser, "--askers", 4, "that ask at once", type=at_least(1))
    option(parser, "--writers", 2, "that bring, change and remove documents", type=at_least(1))
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="faults with this in their names; repeatable",
    )
    parser.add_argument("--objects", action="store_true", help="with a real S3 server, started for it")
    parser.add_argument("--index", action="store_true", help="with a Milvus server, started for it")
    option(parser, "--seed", 0, "of what callers do and which fault strikes when")
    args = parser.parse_args(argv)
    errors = Console(stderr=True, highlight=False)

    def wanted(fault: str) -> bool:
        return not args.only or any(text in fault for text in args.only)

    logging.getLogger("shared").setLevel(logging.ERROR)  # a line for every call that waits
    try:
        with ExitStack() as running:
            scratch = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kvquilt-soak-")))
            around = running.enter_context(surroundings(scratch, args.objects, args.index, wanted))
            state = running.enter_context(demo_towns(errors, TOWNS, **around.settings))
            processes = StackProcesses(state.pid)
            faults = faults_of(processes, around, random.Random(args.seed), frozenset(state.services))
            faults = [fault for fault in faults if wanted(fault.name)]
            if not faults:
                for fault, reason in around.missing.items():
                    raise InvalidRequest(f"{fault}: {reason}")
                raise InvalidRequest("--only: no fault has that in its name; --help names some")
            running.enter_context(keeping_log(Path(state.log_path), errors))
            soak = Soak(state.target, TOWNS, processes, args.every, args.askers, args.writers, args.seed)
            ledger, checked = asyncio.run(soak.run(args.seconds, faults, say))
    except InvalidRequest as error:
        parser.error(error.detail)
    except (Violation, KvquiltError) as error:
        errors.print(f"cluster_soak: FAILED: {error}", style="red", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130
    print(printed_table(ledger))
    for fault, reason in around.missing.items():
        print(f"not here: {fault}: {reason}")
    for line in (*(f"{n} {kind} succeeded" for kind, n in ledger.succeeded.items()), *checked):
        print(line)
    return 0


@contextmanager
def keeping_log(log_path: Path, errors: Console) -> Iterator[None]:
    """What goes wrong here is in the stack's log, which goes with the stack: a copy stays."""
    try:
        yield
    except (Violation, KvquiltError):
        kept = Path(tempfile.mkdtemp(prefix="kvquilt-soak-log-")) / log_path.name
        shutil.copyfile(log_path, kept)
        errors.print(f"the stack's log: {kept}", soft_wrap=True)
        raise


def printed_table(ledger: FaultLedger) -> str:
    """Of every fault what callers were told, and after how long all was well."""
    table = Table("fault", "struck", box=None)
    for kind in (ASKS, WRITES):
        table.add_column(f"{kind} that failed")
        table.add_column(f"all {kind} well after")
    for row in ledger.rows():
        table.add_row(*row)
    console = Console(width=_TABLE_WIDTH)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()


if __name__ == "__main__":
    sys.exit(main())
