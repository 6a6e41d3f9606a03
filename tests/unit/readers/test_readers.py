"""Who may read what: groups, sections, and what is no group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequest, PermissionDenied
from shared.kv_types import Manifest, ManifestChunk
from shared.principals.principal import Principal, Role
from shared.readers import (
    EVERYBODY,
    NOBODY,
    SectionReaders,
    both,
    check_reads_everything,
    checked_readers,
    checked_sections,
    may_read,
    readers_below,
)

groups = st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(sorted).map(tuple)


def who(*groups: str, role: Role = Role.READER) -> Principal:
    return Principal("somebody", "t", frozenset([role]), frozenset(groups))


def test_a_document_without_readers_is_for_everybody_of_the_tenant() -> None:
    assert may_read(who(), EVERYBODY)


def test_one_group_of_the_readers_is_enough() -> None:
    assert may_read(who("a", "x"), ("a", "b"))
    assert not may_read(who("x"), ("a", "b"))
    assert not may_read(who(), ("a",))


def test_the_operator_and_the_group_of_all_groups_read_everything_an_administrator_does_not() -> None:
    assert may_read(Principal.operator("t"), ("a",))
    assert may_read(Principal.operator("t"), NOBODY)
    assert may_read(who("*"), ("a",))
    assert not may_read(who(role=Role.ADMIN), ("a",))
    check_reads_everything(who("*"), "this")
    with pytest.raises(PermissionDenied, match=r"this takes a key .* group"):
        check_reads_everything(who("a", role=Role.ADMIN), "this")


@given(groups, groups, groups)
def test_both_leaves_those_who_are_among_either_s_readers(
    one: tuple[str, ...], other: tuple[str, ...], mine: tuple[str, ...]
) -> None:
    """Somebody in one group; who is in several may be in a group of each and in none of both."""
    for group in mine:
        expected = may_read(who(group), one) and may_read(who(group), other)
        assert may_read(who(group), both(one, other)) == expected
    assert may_read(who(), both(one, other)) == (one == other == EVERYBODY)


def test_a_section_is_all_that_stands_below_its_heading() -> None:
    sections = (SectionReaders("Salaries", ("hr",)), SectionReaders("Board > Notes", ("board",)))

    def below(heading: str) -> tuple[str, ...]:
        return readers_below(heading, ("board", "hr"), sections)

    assert below("Handbook") == below("") == ("board", "hr")
    assert below("Handbook > Salaries") == below("Salaries > 2026 > May") == ("hr",)
    assert below("Board > Notes") == ("board",)
    assert below("Notes > Board") == below("All Salaries") == ("board", "hr")
    assert below("Board > Notes > Salaries") == NOBODY


def test_groups_are_told_once_each() -> None:
    assert checked_readers("readers", ["b", "a", "b"]) == ("a", "b")


@pytest.mark.parametrize(
    ("readers", "message"),
    [
        (["ok", ""], r"readers\[1\]: '' is no word"),
        (["*"], r"readers\[0\]: '\*' is no group"),
        (["a b"], "is no word"),
        (["é"], "is no word"),
        (["x" * 129], "is no word of 1 to 128"),
        ([f"g{i}" for i in range(10_000)], "10000 groups, more than 256"),
    ],
)
def test_what_is_no_group_is_refused_by_name(readers: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        checked_readers("readers", readers)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ([SectionReaders(" ", ("a",))], r"sections\[0\]\.heading: is empty"),
        ([SectionReaders("A", ())], r"sections\[0\]\.readers: names nobody"),
        ([SectionReaders("A", ("c",))], r"'c' is not among the document's readers"),
        ([SectionReaders("A", ("a",)), SectionReaders("A ", ("b",))], r"sections\[1\].* more than once"),
        ([SectionReaders(f"{i}", ("a",)) for i in range(257)], "257, more than 256"),
    ],
)
def test_a_section_that_cannot_be_is_refused_by_name(sections: list[SectionReaders], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        checked_sections("sections", ("a", "b"), sections)


def test_a_section_of_a_document_for_everybody_has_any_readers() -> None:
    assert checked_sections("sections", (), [SectionReaders(" A ", ("b", "a", "a"))]) == (
        SectionReaders("A", ("a", "b")),
    )


def test_of_a_document_everybody_gets_what_he_may_read() -> None:
    chunks = tuple(
        ManifestChunk(chunk_id, (1,), heading=heading)
        for chunk_id, heading in (("1", ""), ("2", "A"), ("3", "A > B"), ("4", "B"))
    )
    sections = (SectionReaders("A", ("a", "b")), SectionReaders("B", ("b",)))
    manifest = Manifest("t", "c", "d", chunks=chunks, readers=("a", "b", "c"), sections=sections)

    def shown(*groups: str) -> str:
        readable = manifest.readable_by(who(*groups))
        return "".join(c.chunk_id for c in readable.chunks) if readable else "none"

    assert [shown(), shown("x"), shown("c"), shown("a"), shown("b"), shown("*")] == [
        *("none", "none", "1", "12", "1234", "1234")
    ]
    assert manifest.readable_by(who("a")).sections == sections[:1]  # type: ignore[union-attr]
    assert manifest.readable_by(who("b")) == manifest
