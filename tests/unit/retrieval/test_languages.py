"""Whether a text is English."""

import pytest

from services.retrieval.languages import is_english

ENGLISH = (
    "The keeper of the house writes down what he sees, and that is not much for a man who is on his own. " * 3
)


@pytest.mark.parametrize(
    "text",
    [
        "Der Wärter des Hauses schreibt auf, was er sieht, und das ist nicht viel für einen Mann, der mit "
        "sich "
        "allein ist und auf die See hinaus wird sehen müssen. ",
        "Le gardien de la maison note ce qui se passe, et il est seul dans les murs avec un chien pour que "
        "le "
        "temps ne soit pas si long, mais sur la mer il y a des bateaux. ",
        "El guardián de la casa es una persona que con los años se ha quedado solo, y por su ventana ve "
        "las olas "
        "del mar como una línea que no se acaba. ",
        "Смотритель дома записывает всё, что видит, и это не так много для человека, который живёт один. ",
        "家の番人は見たものをすべて書き留めるが、一人で暮らす男にとってそれは多くない。",
        "يكتب حارس المنزل كل ما يراه وهذا ليس كثيرا بالنسبة لرجل يعيش وحده على شاطئ البحر. ",
    ],
)
def test_other_languages_and_scripts_are_not_english(text: str) -> None:
    assert is_english(text * 3) is False


@pytest.mark.parametrize("text", [ENGLISH, ENGLISH.upper(), ENGLISH + "Überdies: naïve, Straße. "])
def test_english_is_english(text: str) -> None:
    assert is_english(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The keeper.",
        "| 12 | 13.5 |\n" * 80,
        "def load(path, mode): return open(path, mode).read()\n" * 20,
    ],
)
def test_what_has_no_sentences_is_not_judged(text: str) -> None:
    assert is_english(text) is None
