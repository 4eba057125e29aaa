"""What a shell would put in, and that reading it costs no more than its size."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.launching.reading import read_command
from meshwright.app.launching.reading.script import LONGEST_SCRIPT, read_script
from meshwright.app.launching.reading.shell_words import integer_of
from meshwright.costmodels.errors import InvalidInputError


def commands(text: str) -> list[list[str]]:
    return [list(words) for words in read_script(text).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (': "${X:=8192}"\n: ${Y=2}\na $X ${Y}', ["a", "8192", "2"]),
        ("declare -a A=(1 2)\nA+=(3)\na ${A[@]} ${#A[@]} ${A[0]} ${A[-1]}", ["a", "1", "2", "3", "3", "1", "3"]),
        ("declare -A M=([tp]=8 [pp]=2)\nK=pp\na ${M[tp]} ${M[$K]}", ["a", "8", "2"]),
        ("export A=2 B=3\nC=$((A * B + ${A} ** 2))\na $C $(( (A+B) % 4 )) $((N * 2))", ["a", "10", "1", "$((N * 2))"]),
        ("((N = 2 * 4))\nlet M=N/2\na $N $M", ["a", "8", "4"]),
        ("M=Qwen/Qwen3-8B\na ${M##*/} ${M%%/*} ${M/Qwen3/X} ${M,,}", ["a", "Qwen3-8B", "Qwen", "Qwen/X-8B", "qwen/qwen3-8b"]),
        ('X=1\na ${X:+--x $X} ${Z:+--z} ${Z:-${X:-3}} "${Z:-a b}"', ["a", "--x", "1", "1", "a b"]),
        ("f() { a $1 \"$@\"; }\nf 'x y' z", ["a", "x", "y", "x y", "z"]),
        ("function f {\n local v=$2\n a $v\n}\nf 1 2", ["a", "2"]),
        ("set -- p q\na $2 $1", ["a", "q", "p"]),
        ("a ${1:-8} $3", ["a", "8", "$3"]),
        ("readonly X=1; typeset -i Y=2\na $X$Y", ["a", "12"]),
        ('X=5\nbash -c "a $X \\$X" ', ["a", "5", "5"]),
        ("sudo env X=1 sh -ec 'a $X'", ["a", "1"]),
        ("E='a b'\neval \"$E c\"", ["a", "b", "c"]),
        ("a \"\\$X\" '$X'", ["a", "$X", "$X"]),
        ("X=1\nunset X\na $X", ["a", "$X"]),
    ],
)
def test_what_is_put_in(text: str, expected: list[str]) -> None:
    assert commands(text)[-1] == expected


def test_texts_that_a_script_writes() -> None:
    text = (
        "B=16\ncat <<EOF > a.json\n{\"train_batch_size\": $B}\nEOF\ncat > b.txt <<'EOF'\n$B\nEOF\n"
        "cat <<-EOF | tee c.txt\n\t$B x\n\tEOF\necho '{}' > d.json\na 2> err.log"
    )
    assert read_script(text).files == {
        "a.json": '{"train_batch_size": 16}\n',
        "b.txt": "$B\n",
        "c.txt": "16 x\n",
        "d.json": "{}\n",
    }


def test_lines_are_those_of_the_script() -> None:
    script = read_script("# one\nX=2\n\na \\\n  b\nc; d\n")
    assert list(zip(script.commands, script.lines, strict=True)) == [(("a", "b"), 4), (("c",), 6), (("d",), 6)]


@given(st.text(alphabet="0123456789+-*/%()ab <>", max_size=40))
def test_arithmetic_is_a_number_or_nothing(text: str) -> None:
    found = integer_of(text, {"a": "3", "b": "x"}.get)
    assert found is None or abs(found) < 2**63


BOMBS = {
    "a list in a word": "A=(" + "x " * 9_000 + ")\na " + '"${A[*]}"' * 3_000,
    "words of a list": "A=(" + "x " * 9_000 + ")\na " + "${A[@]} " * 3_000,
    "a word in a word": "A=" + "x" * 90_000 + "\na " + "$A" * 30_000,
    "twice, again and again": "A=xxxxxxxxxxxxxxxx\n" + "".join(f"B{i}=$A$A\nA=$B{i}$B{i}\n" for i in range(30)) + "a $A",
    "a list that grows by itself": "A=(1 2 3 4)\n" + "A+=(${A[@]} ${A[@]})\n" * 40 + "a",
    "defaults in defaults": "a " + "${A:-" * 300 + "x" + "}" * 300,
    "defaults, wide and deep": "a " + "${A:-${B:-${C:-x}}}" * 8_000,
    "a default that is put in many times": "A=" + "x" * 60_000 + "\na " + "${B:-$A}" * 10_000,
    "functions that call themselves": "f() { f; f; }\nf",
    "functions that double": "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(40)) + "f40() { a; }\nf0",
    "shells in shells": "X='bash -c \"$X\"'\n" + 'eval "$X $X"\n' * 50,
    "eval of itself": "X='eval $X; eval $X'\neval $X",
    "a script in a script": "bash -c '" + "a b;" * 20_000 + "'\n" + "eval " + "a;" * 10_000,
    "replaced by what is longer": "A=" + "x" * 30_000 + "\na ${A//x/" + "y" * 30_000 + "}",
    "here-documents": "A=" + "x" * 60_000 + "\ncat > f <<EOF\n" + "$A\n" * 20_000 + "EOF\na",
    "open braces": "cat <<EOF > f\n" + "${" * 60_000 + "\nEOF\na",
    "appended words": "A=" + "x" * 60_000 + "\n" + "A+=y\n" * 20_000 + "a",
    "appended lists": "A=(x)\n" + "A+=(y)\n" * 20_000 + "a",
    "powers": "a " + "$((9**9**9**9))" * 5_000,
    "variables of containers": "docker run " + "-e A=b " * 20_000 + "vllm/vllm-openai a",
    "many statements": "a;" * 99_000,
    "flags": "vllm serve m " + "-x 1 " * 9_000,
    "assignments before": "A=b " * 40_000 + "bash -c x",
}


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", BOMBS)
def test_a_script_costs_no_more_than_its_size(name: str) -> None:
    text = BOMBS[name]
    assert len(text) < 2 * LONGEST_SCRIPT
    tracemalloc.start()
    begin = time.process_time()
    try:
        read_command(text)
    except InvalidInputError:
        pass
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Under tracing, which takes several times as long as without.
    assert time.process_time() - begin < 20.0
    assert peak_bytes < 60e6 + 200 * len(text)


def test_what_is_too_long_is_said_before_it_is_put_in() -> None:
    with pytest.raises(InvalidInputError, match="longer than 200,000 characters or 20,000 words"):
        read_script("A=" + "x" * 1_000 + "\na " + "$A" * 1_000)
