"""Part of a text: its last books, or a share of its first ones, written as it came.

python studies/books.py classics-1.txt.xz prose.txt.xz --last 18        # the books that every study holds out
python studies/books.py classics-0.txt.xz half.txt.xz --first 0.5       # where the whole is too large to be carried
"""

from __future__ import annotations

import argparse
import lzma

END = "\n<|endoftext|>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a .txt.xz file, its books parted by lines <|endoftext|>")
    parser.add_argument("out")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, help="so many books")
    which.add_argument("--first", type=float, help="this share of the books")
    given = parser.parse_args()
    with lzma.open(given.text, "rt", encoding="utf-8", newline="") as file:
        books = file.read().split(END)
    kept = books[-given.last :] if given.last else books[: round(given.first * len(books))]
    with lzma.open(given.out, "wt", encoding="utf-8", newline="", preset=6) as file:
        file.write(END.join(kept))
    print(f"{len(kept)} of {len(books)} books")


if __name__ == "__main__":
    main()
