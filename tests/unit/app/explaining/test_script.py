"""Scripts around launch commands: what is put in, what is left as it is written, and that nothing is run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.launching.reading.script import Script, read_script
from meshwright.costmodels.errors import InvalidInputError


def commands(text: str) -> list[list[str]]:
    return [list(words) for words in read_script(text).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a -b c", [["a", "-b", "c"]]),
        ("a \\\n  b # no c\nd", [["a", "b"], ["d"]]),
        ("X=1\na $X ${X} ${Y:-2} ${Y} '$X' \"$X z\"", [["a", "1", "1", "2", "${Y}", "$X", "1 z"]]),
        ("X=(1 '2 3'\n  # none\n  4)\na ${X[@]} \"${X[@]}\"", [["a", "1", "2", "3", "4", "1", "2 3", "4"]]),
        ('X=()\nX+=("--f 1" "--g")\na ${X[@]}', [["a", "--f", "1", "--g"]]),
        ("export X='--tp 8 --pp 2'\na $X", [["a", "--tp", "8", "--pp", "2"]]),
        ("a > log 2>&1 < in & b || c; (d)", [["a"], ["b"], ["c"], ["d"]]),
        ("X=$(rm -rf /)\na $X `whoami` $((1 + 2))", [["a", "$(rm", "-rf", "/)", "`whoami`", "3"]]),
        ("V=1 a", [["V=1", "a"]]),
        ("a pre$X\"'\" ''", [["a", "pre$X'", ""]]),
    ],
)
def test_words_are_those_of_a_shell(text: str, expected: list[list[str]]) -> None:
    assert commands(text) == expected


def test_what_stands_under_a_condition_is_left_out_and_told() -> None:
    script = read_script("X=1\nif [ -n $A ]; then\n  X=2\nelse\n  X=3\nfi\nfor i in 1 2; do X=4; done\na $X")
    assert script.commands[-1] == ("a", "1")
    assert script.notes == (
        "3 settings of the script stand under a condition or in a loop, and were left out",
        "loops of which the first round is read: 1",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[[ "$X" == "1" ]]', "then"),
        ("[ $X = 1 ]", "then"),
        ("test $X != 1", "else"),
        ("[ -n $X ]", "then"),
        ("[ -z $X ]", "else"),
        ("! [ -z $X ]", "then"),
        ("[ ! -z $X ]", "then"),
        ("[ $X -ge 2 ]", "else"),
        ("[ $X -lt 2 ]", "then"),
        ("true", "then"),
        ("false", "else"),
        ("[ $X = 2 ] || [ $X = 1 ]", "then"),
        ("[ $X = 2 ] || [ $X = 3 ]", "else"),
        ("[ $X = 1 ] && [ $X = 2 ]", "else"),
        ("[ $X = 1 ] || [ -f file ]", "then"),
        ("[ $X = 2 ] && which a", "else"),
        ("[ -f file ]", "before"),
        ("[ $Y = 1 ]", "before"),
        ("[[ $X == [0-9]* ]]", "before"),
        ("[ $X = 1 ] && [ -f file ]", "before"),
        ("[[ $X == 1 && $X == 1 ]]", "before"),
        ("which a", "before"),
    ],
)
def test_of_a_condition_that_is_known_one_branch_is_followed(text: str, value: str) -> None:
    script = read_script(f"X=1\nV=before\nif {text}; then\n  V=then\nelse\n  V=else\nfi\na $V")
    assert script.commands[-1] == ("a", value)
    assert bool(script.notes) is (value == "before")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("a", "1"), ("b", "2"), ("c", "3"), ("$Y", "before"), ("a; KIND=$Z", "before"), ("b; false && X=9", "2")],
)
def test_branches_follow_one_another(kind: str, value: str) -> None:
    asked = "if [ $KIND = a ]; then V=1; elif [ $KIND = b ]; then V=2; else V=3; fi"
    assert commands(f"V=before; KIND={kind}; {asked}; a $V")[-1] == ["a", value]


def test_commands_and_blocks_in_a_branch_that_is_not_taken_are_left_out() -> None:
    text = (
        "X=1\nif [ $X = 2 ]; then\n  for i in 1 2; do b; done\n  if true; then c; fi\nelse\n  if [ $X = 1 ]; then d; fi\nfi\na"
    )
    assert [words[0] for words in commands(text) if words[0] in "abcd"] == ["d", "a"]


def test_lists_grow_in_a_branch_that_is_taken() -> None:
    text = 'T=fp8\nL=()\nif [[ "$T" == "fp8" ]]; then\n  L+=(\n    "--f hybrid"\n  )\nfi\na ${L[@]}'
    assert commands(text)[-1] == ["a", "--f", "hybrid"]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "X=(a", "a $(b", "a ${b", "x" * 200_001])
def test_scripts_that_are_not_closed(text: str) -> None:
    with pytest.raises(InvalidInputError):
        read_script(text)


def test_words_that_double_end() -> None:
    doubling = "X=xxxxxxxxxxxxxxxx\n" + 'X="$X$X"\n' * 60 + "a $X"
    with pytest.raises(InvalidInputError, match="longer than"):
        read_script(doubling)


@given(st.text(alphabet="aX=$(){}[]@+-'\"\\`#;&|<> \n\t01", max_size=60))
def test_any_text_is_words_or_a_typed_error(text: str) -> None:
    try:
        found = read_script(text)
    except InvalidInputError:
        return
    assert isinstance(found, Script)


def test_a_script_that_looks_for_its_launcher_first() -> None:
    text = (
        "P=pretrain_gpt.py\nif [ ! -f $P ]; then echo no $P; fi\ntorchrun --nproc_per_node 4 $P --tensor-model-parallel-size 2"
    )
    found = read_command(text)
    assert isinstance(found, StatedTraining)
    assert (found.world, found.tp) == (4, 2)
