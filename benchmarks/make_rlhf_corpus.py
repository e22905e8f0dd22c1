"""Makes ppo_rlhf_tiny.txt.gz, the text and the valences that ppo_rlhf_tiny.py learns from.

Text: clauses of the King James Bible (1611, public domain) of 6 to 19 words, all of them among its
1,000 commonest words: formulaic enough that a tiny model writes readable English. From Debian's
packages bible-kjv and bible-kjv-text. Valences, from -4 to 4: VADER lexicon (MIT licence, its
notice is in the file), from the package vaderSentiment 3.3.2.

    apt-get install bible-kjv && pip install vaderSentiment==3.3.2
    bible -f -l9999 gen1:1-rev22:21 | python benchmarks/make_rlhf_corpus.py
"""

import gzip
import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

VOCABULARY, SHORTEST, LONGEST = 1000, 6, 19
HEADER = """\
# One clause per line; lines WORD<TAB>NUMBER give the valence of a word, from -4 to 4.
# Text: King James Bible (1611), public domain. Valences: VADER lexicon, under this licence:
#
# The MIT License (MIT)
#
# Copyright (c) 2016 C.J. Hutto
#
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
# associated documentation files (the "Software"), to deal in the Software without restriction,
# including without limitation the rights to use, copy, modify, merge, publish, distribute,
# sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all copies or
# substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
# NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
# NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
# DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
# OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def clauses(verses: str) -> list[list[str]]:
    """Verses "Ge1:1 In the beginning ..." -> the words between two marks . : ; ? !"""
    text = re.sub(r"^\w+:\d+ ", "", verses, flags=re.MULTILINE).lower()
    return [re.findall(r"[a-z][a-z'-]*", clause) for clause in re.split(r"[.:;?!]", text)]


def main() -> None:
    everything = clauses(sys.stdin.read())
    counts = Counter(word for clause in everything for word in clause)
    known = {word for word, _ in counts.most_common(VOCABULARY)}
    chosen = [c for c in everything if SHORTEST <= len(c) <= LONGEST and known.issuperset(c)]
    lines = list(dict.fromkeys(" ".join(clause) for clause in chosen))  # each once
    package = find_spec("vaderSentiment").submodule_search_locations[0]
    lexicon = Path(package, "vader_lexicon.txt").read_text(encoding="utf-8")
    valences = dict(line.split("\t")[:2] for line in lexicon.splitlines() if line.strip())
    valences = [f"{word}\t{valences[word]}" for word in sorted(known & valences.keys())]
    content = HEADER + "\n".join(valences + lines) + "\n"
    path = Path(__file__).resolve().parent.parent / "ppo_rlhf_tiny.txt.gz"
    path.write_bytes(gzip.compress(content.encode(), 9, mtime=0))
    print(f"{len(lines)} clauses, {len(valences)} valences, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
