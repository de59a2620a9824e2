"""The gate for value patterns: what is accepted, what it covers, and what a refusal says."""

from __future__ import annotations

import random

import pytest

from mdm_gitops.model import charset
from mdm_gitops.model.pattern import MAX_LENGTH, matches, to_postgres, why_refused
from tests.unit import pattern_samples

RENDERED = [
    ("", "^(?:)$"),
    ("[A-Z]{2}", "^(?:[A-Z]{2})$"),
    ("^[A-Z]{2}$", "^(?:[A-Z]{2})$"),
    (r"\A\d+\z", "^(?:[0-9]+)$"),
    ("^foo|bar$", "^(?:foo|bar)$"),
    ("(^a$)|(^b$)", "^(?:a|b)$"),
    ("^^a$$", "^(?:a)$"),
    ("a|", "^(?:a|)$"),
    ("(|)*", "^(?:)$"),
    (".", r"^(?:[^\u000a])$"),
    ("(?s).", "^(?:.)$"),
    ("(?s:.).", r"^(?:.[^\u000a])$"),
    ("(?s-s).", r"^(?:[^\u000a])$"),
    (r"[\s\S]", "^(?:.)$"),
    (r"\s", r"^(?:[\u0009\u000a\u000c\u000d ])$"),
    (r"\W", "^(?:[^0-9A-Z_a-z])$"),
    (r"[^\W\d]", "^(?:[A-Z_a-z])$"),
    (r"[[:^alpha:][:alpha:]]", "^(?:.)$"),
    ("(?P<year>[0-9]{4})-(?<month>[0-9]{2})", "^(?:[0-9]{4}-[0-9]{2})$"),
    ("a+?b*?c??d{2,3}?", "^(?:a+b*c?d{2,3})$"),
    ("a{1}b{0}c{2,}", "^(?:ac{2,})$"),
    ("a{300}", "^(?:a{255}a{45})$"),
    ("a{3,300}", "^(?:a{3,255}a{0,45})$"),
    ("a{300,}", "^(?:a{255}a{45,})$"),
    ("(ab){2}", "^(?:(?:ab){2})$"),
    ("(a|b)c", "^(?:(?:a|b)c)$"),
    ("(a?){2,5}", "^(?:a{0,5})$"),
    ("(a*|b|)+", "^(?:(?:a+|b)*)$"),
    ("(a?b?)*", "^(?:(?:a?b?)*)$"),
    ("(?i)k", r"^(?:[Kk\u212a])$"),
    ("(?i)[^s]", r"^(?:[^Ss\u017f])$"),
    ("(?i:a)a", "^(?:[Aa]a)$"),
    ("(?i)ß", r"^(?:[\u00df\u1e9e])$"),
    ("(?i)Σ", r"^(?:[\u03a3\u03c2\u03c3])$"),
    ("a(?i)b|c", "^(?:a[Bb]|[Cc])$"),
    (r"\.\-\\\/", r"^(?:\.-\\/)$"),
    (r"[\]\-^\\[]", r"^(?:[\-\[-\^])$"),
    ("[]a-]", r"^(?:[\-\]a])$"),
    ("[^]a]", r"^(?:[^\]a])$"),
    ("[+--]", r"^(?:[+-\-])$"),
    (r"\x41\x{e9}\x{1F600}\t", r"^(?:A\u00e9\U0001f600\u0009)$"),
    ("[a-bé-ǆ]", r"^(?:[ab\u00e9-\u01c6])$"),
    (r"\p{Thai}", r"^(?:[\u0e01-\u0e3a\u0e40-\u0e5b])$"),
    (r"\P{^Thai}", r"^(?:[\u0e01-\u0e3a\u0e40-\u0e5b])$"),
    (r"[\x{D000}-\x{F000}]", r"^(?:[\ud000-\ud7ff\ue000-\uf000])$"),
    ("(?m)^a$", "^(?:a)$"),
    ("(?U)a+", "^(?:a+)$"),
    ("}", r"^(?:\})$"),
    ("a]", r"^(?:a\])$"),
]


@pytest.mark.parametrize(("pattern", "rendered"), RENDERED)
def test_a_pattern_is_written_anew_for_postgres(pattern: str, rendered: str) -> None:
    assert why_refused(pattern) is None
    assert to_postgres(pattern) == rendered


REFUSED = [
    ("(?=a)b", "look-around (?=...) is not possible"),
    ("(?!a)b", "look-around (?!...) is not possible"),
    ("a(?<=a)", "look-around (?<=...) is not possible"),
    ("a(?<!a)", "look-around (?<!...) is not possible"),
    (r"(a)\1", "back-references are not possible; write the part again (character 5)"),
    (r"(?P<n>a)(?P=n)", "back-references are not possible"),
    (r"\k<n>", "back-references are not possible"),
    ("(?>a)", "(?>a is no group; write ( ) or (?: )"),
    ("(?#note)", "(?#n is no group"),
    ("(?x)a", "(?x) is no group"),
    ("(?)a", "(?) is no group"),
    ("(?i", "(?i is no group"),
    ("a++", "two repetitions follow each other; put the first into ( )"),
    ("a{2}{3}", "two repetitions follow each other"),
    ("*a", r"* has nothing to repeat; write \* for the character (character 1)"),
    ("***:a", "* has nothing to repeat"),
    ("a{,3}", r"{ starts no count such as {2,5}; write \{ for the character (character 2)"),
    ("a{01}", "{ starts no count"),
    ("a{3,2}", "{3,2} is no count"),
    ("a{1001}", "{1001} is no count"),
    ("(a", r"a ( is not closed; write \( for the character (character 1)"),
    ("a)", r"a ) has no (; write \) for the character (character 2)"),
    ("[a", r"a [ is not closed; write \[ for the character (character 1)"),
    ("[a-", "a [ is not closed"),
    ("[", "a [ is not closed"),
    ("[]", "a [ is not closed"),
    ("[z-a]", "the range 'z' to 'a' is empty; turn it round"),
    (r"[\d-z]", r"a class cannot begin a range; write \- for the character"),
    (r"[a-\d]", r"a class cannot end a range; write \- for the character"),
    ("[a-[]", r"write \[ for the character at the end of a range"),
    ("[a-c-e]", r"- follows a range; write \- for the character"),
    ("[[.a.]]", r"write \["),
    ("[[:foo:]]", "[:foo:] is no class of characters; there are alnum"),
    (r"[^\x{1}-\x{10FFFF}]", "covers no character"),
    (r"\p{Foo}", r"\p{Foo} is no class of characters; \p{L} is any letter"),
    (r"\p", r"\p means nothing here"),
    (r"\x{0}", r"\x{0} is no character that can be stored"),
    (r"\x{D800}", "is no character that can be stored"),
    (r"\x{110000}", "is no character that can be stored"),
    (r"\012", r"\0 is not possible; escape each character for itself"),
    (r"\Qa.b\E", r"\Q is not possible; escape each character for itself"),
    (r"\u00e9", r"\u is not possible; write \x{20AC} for a code point"),
    (r"a\Z", r"\Z is not possible; a pattern always covers the whole value"),
    (r"\é", r"\é means nothing here; write 'é' without"),
    (r"\C", r"\C means nothing here"),
    ("a\\", r"the pattern ends with \; write \\ for the character"),
    ("[a\\", r"the pattern ends with \; write \\ for the character"),
    ("a^b", "^ stands inside the pattern, where it can never hold"),
    ("a$b", "$ stands inside the pattern, where it can never hold"),
    ("(^a)*", "^ stands inside the pattern"),
    (r"(\bfoo)*", r"\b and \B cannot be repeated; put them outside the repetition"),
    (r"((a|\b)+)+", r"\b and \B cannot be repeated"),
    (r"\b" * 9, r"there are more than 8 \b and \B"),
    ("(a{1,200}){1,200}", "the counts in the pattern multiply to 40000 steps, at most 2000"),
    ("(a{1,44}){1,44}", "the counts in the pattern multiply to over 1000"),
    (r"\p{L}{0,900}\p{Lu}{0,900}", "the pattern takes too much memory; use smaller counts"),
    (r"\PL\PN\PM[\PL\PN]\pL[\pL@]\pN\p{Lu}", "the pattern names too many characters"),
    ("(" * 33 + ")" * 33, "groups are nested deeper than 32"),
    ("(?P<1n>a)", "is no group"),
    ("a\x00", "the pattern holds a character that PostgreSQL cannot store"),
    ("\ud800", "the pattern holds a character that PostgreSQL cannot store"),
    ("a" * (MAX_LENGTH + 1), "the pattern has 513 characters, at most 512 are allowed"),
]


@pytest.mark.parametrize(("pattern", "sentence"), REFUSED)
def test_a_refusal_says_what_to_write(pattern: str, sentence: str) -> None:
    reason = why_refused(pattern)
    assert reason is not None and sentence in reason
    assert not reason.endswith(".")


VERDICTS = [
    ("[A-Z]{2}", "CH", True),
    ("[A-Z]{2}", "CHE", False),
    ("[A-Z]{2}", "CH\n", False),
    ("a|ab", "ab", True),
    (".*", "a\nb", False),
    ("(?s).*", "a\nb", True),
    (r"\p{Lu}\p{Ll}+", "Émile", True),
    (r"\w+", "Émile", False),
    ("(?i)straße", "STRAẞE", True),
]


@pytest.mark.parametrize(("pattern", "text", "verdict"), VERDICTS)
def test_a_pattern_covers_the_whole_value(pattern: str, text: str, verdict: bool) -> None:
    assert matches(pattern, text) is verdict


def test_no_text_makes_the_gate_fail() -> None:
    """Whatever is written is accepted or refused with a sentence; nothing else comes out."""
    rng = random.Random(7)
    alphabet = "ab01-[](){}|^$.*+?\\pLdwsbxi:=!<>P,Q'é€\x00\ud800\n&~#"
    seen = set()
    for _ in range(20_000):
        seen.add(why_refused("".join(rng.choices(alphabet, k=rng.randint(1, 14)))) is None)
    assert seen == {True, False}


def test_every_posix_and_perl_class_is_the_one_of_re2() -> None:
    perl = {r"\d": charset.DIGIT, r"\w": charset.WORD, r"\s": charset.SPACE}
    posix = {f"[[:{name}:]]": members for name, members in charset.POSIX.items()}
    for pattern, members in (perl | posix).items():
        covered = {c for c in range(1, 0x300) if matches(pattern, chr(c))}
        assert covered == {c for low, high in members for c in range(low, high + 1)}, pattern


def test_generated_patterns_are_mostly_accepted() -> None:
    """The samples that the database test relies on are not refused away."""
    rng = random.Random(3)
    accepted = sum(why_refused(pattern_samples.pattern(rng)) is None for _ in range(300))
    assert accepted > 200
