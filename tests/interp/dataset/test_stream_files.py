"""Files and folders as streams: the same examples as `load_dataset`, in a memory that does not grow with the file."""

import gzip
import json
import logging
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interp.dataset import Dataset, Example, iter_examples, load_corpus, load_dataset, write_dataset
from interp.dataset import files as files_module

CHAT = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"})


def read(data, **options) -> list[Example]:
    return list(iter_examples(data, **options))


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def many() -> Dataset:
    """More rows than a piece holds; the column `late` shows in its last row alone that it is text."""
    return Dataset(
        "d",
        tuple(
            Example(
                f"Ä, {i}\nx", i % 2, f"g{i // 2}", "train", {"n": i, "score": i / 4, "late": "x" if i == 599 else "7"}
            )
            for i in range(600)
        ),
    )


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_files_stream_what_load_dataset_reads(tmp_path: Path, many: Dataset, kind: str):
    path = write_dataset(many, tmp_path / f"d.{kind}")
    assert read(path) == read(str(path)) == list(many) == list(load_dataset(path))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_packed_files(tmp_path: Path, many: Dataset, kind: str):
    path = write_dataset(many, tmp_path / f"d.{kind}")
    packed = written(tmp_path / f"p.{kind}.gz", path.read_text("utf-8"))
    assert read(packed) == list(many)


def test_text_files_are_one_text_a_line(tmp_path: Path):
    text = "first\r\n\n  second\u2028part\n"
    examples = [Example("first"), Example("  second\u2028part")]
    for name in ("a.txt", "a.txt.gz"):
        assert read(written(tmp_path / name, text)) == examples
    assert list(load_corpus(tmp_path / "a.txt")) == examples


def test_json_arrays_come_object_by_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{"text": f'"{i}" [,] \\ Ä', "n": i, "deep": {"a": [i, None]}} for i in range(40)]
    examples = [Example(row["text"], meta={"n": row["n"], "deep": row["deep"]}) for row in rows]
    for piece in (1, 7, 64, 1 << 20):  # objects are cut anywhere
        monkeypatch.setattr(files_module, "PIECE_BYTES", piece)
        for indent in (None, 2):
            assert read(written(tmp_path / "a.json", json.dumps(rows, indent=indent))) == examples
        lines = "\n".join(json.dumps(row) for row in rows)
        assert read(written(tmp_path / "lines.json.gz", lines)) == examples


def test_the_type_of_a_csv_column_is_that_of_the_rows_read(tmp_path: Path):
    path = written(tmp_path / "a.csv", "text,n,label,7\n1,1,2,0\n2,2.5,1,1\n3,x,0,2\n")
    assert [e.meta for e in iter_examples(path)] == [{"n": "1", "7": 0}, {"n": "2.5", "7": 1}, {"n": "x", "7": 2}]
    assert [e.meta["n"] for e in iter_examples(path, limit=2)] == [1.0, 2.5]
    assert [e.meta["n"] for e in iter_examples(path, limit=1)] == [1]
    assert [(e.text, e.label) for e in iter_examples(path)] == [("1", 2), ("2", 1), ("3", 0)]
    # A column that is asked for as text, label or group stays as it is written.
    assert read(written(tmp_path / "b.csv", "q,g\n007,1.50\n"), text="q", group="g") == [Example("007", group="1.50")]


def test_parquet_keeps_nulls_dates_and_lists(tmp_path: Path):
    table = pa.table({"text": ["a", "b"], "n": [3, None], "day": pa.array([0, 1], pa.date32()), "l": [[1], [2, 3]]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert [e.meta for e in iter_examples(tmp_path / "a.parquet")] == [
        {"n": 3, "day": "1970-01-01", "l": [1]},
        {"n": None, "day": "1970-01-02", "l": [2, 3]},
    ]
    filtered = pd.DataFrame({"text": ["a", "b"]})[1:]
    filtered.to_parquet(tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet") == [Example("b")]


def test_json_rows_have_their_own_columns(tmp_path: Path):
    path = written(tmp_path / "a.jsonl", '{"text": "a", "x": 1}\n\n{"text": "b", "label": 3}\n')
    assert read(path) == [Example("a", meta={"x": 1}), Example("b", 3)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_conversations_are_written_and_read_back(tmp_path: Path, kind: str):
    data = Dataset("d", (Example("", 1, messages=CHAT), Example("", 0, messages=CHAT[:1])))
    assert read(write_dataset(data, tmp_path / f"d.{kind}")) == list(data)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,1\n,0\n", r"text 1 \(a\.csv, row 2\) is empty, the column 'text' holds ''"),
        ("a.csv", "text,label\na,pos\n", r"text 0 \(a\.csv, row 1\) has 'pos' in its column 'label'"),
        ("a.csv", "text,label\n", "a.csv has no rows"),
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "text,label\na,1\nb,0,5,6\n", "Expected 2 fields in line 3, saw 4"),
        ("a.csv", "text,label\na,1,5\n", "more values than its header has names"),
        ("a.csv", "sentence\na\n", r"text 0 \(a\.csv, row 1\) has no column 'text'"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', "cannot read .*line 2 is a list, not an object"),
        ("a.jsonl", '{"text": "a"}\nnot json\n', "line 2 is not JSON"),
        ("a.json", '[{"text": "a"}', "object 2 is not JSON|neither a comma"),
        ("a.json", '[{"text": "a"} {"text": "b"}]', "after object 1 there is neither a comma nor the end"),
        ("a.json", '[{"text": "a"},]', "object 2 is not JSON"),
        ("a.json", '[{"text": "a"}] x', "more after the end of the array"),
        ("a.json", '[{"text": a}' + " " * 99 + "]", "object 1 is not JSON"),
        ("a.json", "[[1]]", "object 1 is a list"),
        ("a.json", "[]", "a.json has no rows"),
        ("a.txt", "\n \n", "a.txt has no rows"),
        ("a.parquet", "not parquet", "cannot read .*a.parquet"),
        (
            "a.csv",
            "text,n,text\na,1,b\n",
            "cannot read .*a.csv: 2 of its columns are called 'text': rename or drop all",
        ),
        ("a.tsv", "text\tn\tn\na\t1\t2\n", "2 of its columns are called 'n'"),
        ("a.csv.gz", None, "cannot read .*a.csv.gz"),
        ("a.jsonl.gz", None, "cannot read .*a.jsonl.gz"),
        ("a.xlsx", "x", r"cannot read a.xlsx: the ending says the format, one of \.csv"),
        ("a.md", "x", "cannot read a.md: .*; a folder is read with one document a file"),
        ("a.parquet.gz", "x", "cannot read a.parquet.gz: the ending"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: str | None, message: str):
    path = tmp_path / name
    if content is None:  # a packed file that lost its end
        path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 99)[:-12])
    else:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path):
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "a.parquet")
    for reader in (read, load_dataset):
        with pytest.raises(ValueError, match="2 of its columns are called 'text'"):
            reader(tmp_path / "a.parquet")


def test_columns_without_a_name_are_no_repetition(tmp_path: Path):
    path = written(tmp_path / "a.csv", ",text,\n0,a,x\n")
    assert read(path) == [Example("a", meta={"Unnamed: 0": 0, "Unnamed: 2": "x"})]


def test_other_encodings_are_refused(tmp_path: Path):
    for name in ("a.csv", "a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes('text\n{"text": "ä"}\n'.encode("latin-1"))
        with pytest.raises(ValueError, match=r"not UTF-8|not JSON"):
            read(tmp_path / name)


def test_strings_that_look_like_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.chdir(tmp_path)
    for name in ("none.csv", "some/where.txt.gz", "~/none.jsonl", "s3://bucket/none.parquet", "README.md"):
        with pytest.raises(ValueError, match=rf"there is no file {name}; pass \['{name}'\] if that is the text"):
            iter_examples(name)
    with pytest.raises(ValueError, match=r"there is no file none\.csv"):
        iter_examples(Path("none.csv"))
    for name, kind in (("d/not here.csv", "file"), ("d/none/", "folder")):
        with pytest.raises(ValueError, match=rf"there is no {kind} {name}; pass \['{name}'\] if that is the text"):
            iter_examples(name)
    for name in ("notes.xyz", "noending", "d/x.md"):
        written(tmp_path / name, "x")
        with pytest.raises(ValueError, match=rf"the ending says the format, one of \.csv.*pass \['{name}'\] if"):
            iter_examples(name)
    for text in ("Read a.csv", "See d/a.csv", "and/or", "either / or /", "x" * 5000 + "/"):
        assert read(text) == [Example(text)]
    assert read("a" * 5000) == [Example("a" * 5000)]
    assert read("odd\0name") == [Example("odd\0name")]
    written(tmp_path / "two words.txt", "x\n")
    assert read("two words.txt") == [Example("x")]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("~/two words.txt") == read(Path("~/two words.txt")) == [Example("x")]
    written(tmp_path / "notes/a.md", "y")
    with caplog.at_level(logging.INFO, "interp"):
        assert read("notes") == [Example("y", group="a.md")]
    assert "'notes' is read as the folder of that name; pass ['notes'] for the text itself" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    """A quarter of a file and then all of its 36 MB: the peak stays where it was, apart from a few MB."""
    line = "x" * 6_000
    paths = [tmp_path / f"a.{kind}" for kind in ("csv", "jsonl", "json", "parquet")]
    n = 6_000
    written(paths[0], "text,n\n" + f"{line},1\n" * n)
    written(paths[1], f'{{"text": "{line}"}}\n' * n)
    written(paths[2], "[" + ",".join([f'{{"text": "{line}"}}'] * n) + "]")
    texts = [f"{i} {line}" for i in range(n)]
    pq.write_table(pa.table({"text": texts}), paths[3], compression="none", use_dictionary=False)
    code = """
import re, sys
from pathlib import Path
from interp.dataset import iter_examples

def peak():
    # Not getrusage: its peak is that of the process before exec as well.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024

for path in sys.argv[1:]:
    assert sum(1 for _ in iter_examples(path, limit=1_500)) == 1_500
before = peak()
for path in sys.argv[1:]:
    assert sum(1 for _ in iter_examples(path)) == 6_000
    print(path, peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=True)
    growth = {line.split()[0]: int(line.split()[1]) for line in run.stdout.splitlines()}
    assert max(growth.values()) < 8, growth


# ------------------------------------------------------------------------------------------------------------- folders


def test_a_folder_of_documents(tmp_path: Path, caplog):
    for name, text in (("b.txt", "two\n\nlines\n"), ("a/z.md", "# z"), ("a/y.txt.gz", "y"), (".git/x.txt", "no")):
        written(tmp_path / "docs" / name, text)
    written(tmp_path / "docs/picture.png", "no text")
    outside = written(tmp_path / "secret.txt", "no")
    (tmp_path / "docs/link.txt").symlink_to(outside)
    (tmp_path / "docs/folder").symlink_to(tmp_path / "docs/a")
    assert read(tmp_path / "docs") == [
        Example("y", group="a/y.txt.gz"),
        Example("# z", group="a/z.md"),
        Example("two\n\nlines\n", group="b.txt"),
    ]
    assert "1 files with other endings are left out, for example picture.png" in caplog.text
    assert "2 links are not followed" in caplog.text
    assert len(read(tmp_path / "docs", limit=2)) == 2
    written(tmp_path / "docs/c.txt", "")
    with pytest.raises(ValueError, match=r"text 3 \(c\.txt\) is empty: drop it"):
        read(tmp_path / "docs")


def test_a_folder_of_shards_is_one_table(tmp_path: Path):
    written(tmp_path / "s/1.csv", "text,n\na,1\nb,2\n")
    written(tmp_path / "s/2.csv.gz", "n,text\nx,c\n")  # the columns stand in another order, and one is no number here
    assert read(tmp_path / "s") == [Example(text, meta={"n": n}) for text, n in zip("abc", "12x")]
    assert [e.meta["n"] for e in iter_examples(tmp_path / "s", limit=2)] == [1, 2]
    for i in range(2):
        written(tmp_path / f"j/part-{i}.jsonl", f'{{"text": "{i}"}}\n')
        (tmp_path / "p").mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": [str(i)]}), tmp_path / f"p/{i}.parquet")
    assert read(tmp_path / "j") == read(tmp_path / "p") == [Example("0"), Example("1")]
    written(tmp_path / "j/part-2.jsonl", '{"text": ""}\n')
    with pytest.raises(ValueError, match=r"text 2 \(part-2\.jsonl, row 1\) is empty"):
        read(tmp_path / "j")


def test_folders_that_are_no_one_thing_are_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has nothing to read: no file in it ends in"):
        iter_examples(tmp_path / "empty")
    written(tmp_path / "mixed/a.csv", "text\na\n")
    written(tmp_path / "mixed/b.jsonl", '{"text": "a"}\n')
    with pytest.raises(ValueError, match=r"mixed holds \.csv and \.jsonl, for example a\.csv: .* move the others"):
        iter_examples(tmp_path / "mixed")
    written(tmp_path / "readme/a.csv", "text\na\n")
    written(tmp_path / "readme/README.md", "# a")
    with pytest.raises(ValueError, match=r"holds \.csv and texts"):
        iter_examples(tmp_path / "readme")
    written(tmp_path / "tables/a.csv", "text,n\na,1\n")
    written(tmp_path / "tables/b.csv", "text,m\na,1\n")
    with pytest.raises(ValueError, match=r"not one table: b\.csv has the columns text, m, and a\.csv has text, n"):
        iter_examples(tmp_path / "tables")


# ---------------------------------------------------------------------------------------------------------- real files


def test_real_files(shared_data: Path):
    for path in sorted((shared_data / "truth").glob("*.csv")):
        examples = read(path, limit=500)
        frame = pd.read_csv(path, nrows=500)
        assert [e.text for e in examples] == frame.statement.tolist()
        assert [e.label for e in examples] == frame.label.tolist()
    cities = shared_data / "truth/cities.csv"
    assert read(cities, group="city") == list(load_dataset(cities, group="city"))
    wiki = shared_data / "wikitext-2/valid.txt"
    assert read(wiki) == list(load_corpus(wiki))


def test_the_files_of_truthfulqa(shared_data: Path):
    path = shared_data / "truthfulqa/TruthfulQA.csv"
    examples = read(path, text="Question", group="Category")
    assert [e.text for e in examples] == pd.read_csv(path).Question.tolist()
    assert list(examples[0].meta) == [
        "Type",
        "Best Answer",
        "Best Incorrect Answer",
        "Correct Answers",
        "Incorrect Answers",
        "Source",
    ]
    assert examples[0].group == "Misconceptions"
    choices = read(shared_data / "truthfulqa/mc_task.json", text="question")
    assert len(choices) == len(json.loads((shared_data / "truthfulqa/mc_task.json").read_text()))
    assert sum(choices[0].meta["mc1_targets"].values()) == 1
