"""Files as people have them: exports of pandas and Excel, dumps, nested objects, other encodings, empty rows."""

import codecs
import datetime
import decimal
import gzip
import json
import math
import tracemalloc
import uuid

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heldin.corpus.build import build_store
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.sources import json_rows as json_files
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.files import FileCorpus
from heldin.corpus.sources.open import Several, open_source
from heldin.corpus.sources.rows import Columns, usable_record, value_at
from heldin.corpus.sources.text_files import TextFormat
from heldin.words.rows import FileText
from tests.refusals import names, refused

ROWS = [{"user": "ann", "text": "Good morning; all, of | you."}, {"user": "bob", "text": 'He said "no",\nthen left.'}]
PAIRS = [(row["user"], row["text"]) for row in ROWS]


def read(path, columns=None, form=None, bad=None):
    source = open_source(path, columns or Columns(), form)
    source.look()
    return [(r["user"], r["text"]) for batch in source.batches(bad or BadRows()) for r in batch.to_pylist()]


def written(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    return path


class TestJson:
    @pytest.mark.parametrize("indent", [None, 2])
    def test_an_array_of_objects_is_read(self, tmp_path, indent):
        assert read(written(tmp_path / "m.json", json.dumps(ROWS, indent=indent))) == PAIRS

    def test_what_pandas_writes_as_records_is_read_and_by_columns_is_refused(self, tmp_path):
        table = pd.DataFrame(ROWS)
        table.to_json(tmp_path / "records.json", orient="records")
        assert read(tmp_path / "records.json") == PAIRS
        table.to_json(tmp_path / "lines.jsonl", orient="records", lines=True)
        assert read(tmp_path / "lines.jsonl") == PAIRS
        table.to_json(tmp_path / "columns.json")
        with refused(naming=("columns.json", "orient='records'")):
            read(tmp_path / "columns.json")

    @pytest.mark.parametrize("indent", [None, 2])
    def test_a_list_within_an_object_is_named_and_read(self, tmp_path, indent):
        content = {"meta": {"count": 2, "data": [1]}, "data": ROWS, "next": None}
        path = written(tmp_path / "m.json", json.dumps(content, indent=indent))
        with refused(naming=("m.json", "--field data", "format.field")):
            read(path)
        assert read(path, form=TextFormat(field="data")) == PAIRS
        inner = written(tmp_path / "inner.json", json.dumps({"answer": content}))
        assert read(inner, form=TextFormat(field="answer.data")) == PAIRS
        with refused(naming=("m.json", "'rows'", "meta, data, next")):
            read(path, form=TextFormat(field="rows"))

    @pytest.mark.parametrize("piece", [1, 2, 3, 7, 64])
    def test_pieces_may_end_anywhere(self, tmp_path, monkeypatch, piece):
        monkeypatch.setattr(json_files, "PIECE", piece)
        rows = [{"user": i, "text": f'\\"é{i}" [x] \u2028', "n": [1.5e-3, None, True, {"a": []}]} for i in range(40)]
        content = json.dumps({"skip": [12, 3.5e7, "]", {}], "data": rows, "more": 1}, ensure_ascii=piece > 2)
        found = read(written(tmp_path / "m.json", content), form=TextFormat(field="data"))
        assert found == [(str(row["user"]), row["text"]) for row in rows]
        assert read(written(tmp_path / "n.json", "[]")) == []

    def test_a_broken_array_names_the_item_before_and_a_bad_item_is_a_bad_row(self, tmp_path):
        text = json.dumps(ROWS)
        for content in (text[:-20], text[:-1], text.replace("}, {", "} {"), text + text, "[1 2]"):
            with refused(naming=("m.json after item", "JSON")):
                read(written(tmp_path / "m.json", content), bad=BadRows(OnBadRows.SKIP))
        good = json.dumps(ROWS[0])
        path = written(tmp_path / "m.json", f'[{good}, 5, {{"user": "a", "user": "b", "text": "x"}}, {good}]')
        with refused(naming=("m.json item 2", "number", "--skip-bad-rows")):
            read(path)
        bad = BadRows(OnBadRows.SKIP)
        assert read(path, bad=bad) == [PAIRS[0]] * 2
        assert bad.unusable == 2

    @pytest.mark.parametrize("indent", [1, 4])
    def test_objects_over_several_lines_are_read_one_after_the_other(self, tmp_path, indent):
        """As jq prints them."""
        path = written(tmp_path / "m.json", "\n".join(json.dumps(row, indent=indent) for row in ROWS) + "\n")
        assert read(path) == PAIRS
        assert read(written(tmp_path / "one.json", json.dumps(ROWS[0], indent=indent))) == PAIRS[:1]
        # A first line that is broken is a bad row of JSON lines, which may be skipped.
        good = json.dumps(ROWS[0])
        for broken in ("{", '{"user": "ann",', "}"):
            bad = BadRows(OnBadRows.SKIP)
            assert read(written(tmp_path / "b.jsonl", f"{broken}\n{good}\n"), bad=bad) == PAIRS[:1]
            assert bad.unusable == 1

    def test_memory_does_not_grow_with_the_array(self, tmp_path):
        def most(count):
            rows = ({"user": f"u{i % 9}", "text": f"{i} " * 200} for i in range(count))
            with (tmp_path / "m.json").open("w", encoding="utf-8") as stream:
                stream.write("[" + ",".join(map(json.dumps, rows)) + "]")
            tracemalloc.start()
            assert sum(1 for _ in json_files.json_rows(tmp_path / "m.json", TextFormat(), BadRows())) == count
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return peak

        few, many = most(10_000), most(40_000)  # about 10 and 40 MB
        assert many < 1.2 * few


class TestTables:
    @pytest.mark.parametrize(
        ("sign", "name"),
        [(";", "semicolons"), ("\t", "tabs"), ("|", "|"), (",", None)],
        ids=["semicolon", "tab", "bar", "comma"],
    )
    @pytest.mark.parametrize("ending", [".csv", ".tsv", ".txt", ".TXT"])
    def test_the_header_decides_what_separates_fields(self, tmp_path, sign, name, ending):
        pd.DataFrame([{"n": 1, **row} for row in ROWS]).to_csv(tmp_path / f"m{ending}", sep=sign, index=False)
        assert read(tmp_path / f"m{ending}") == PAIRS
        found = open_source(tmp_path / f"m{ending}", Columns()).look()
        assert [(s.states(FileText.DELIMITER), s.values["delimiter"]) for s in found] == (
            [(True, name)] if name else []
        )

    def test_a_header_with_several_signs_is_read_by_the_one_under_which_the_columns_are_there(self, tmp_path):
        path = written(tmp_path / "m.csv", "user;text, long;a,b,c,d\nann;hello;x\n")
        assert read(path, Columns(text="text, long")) == [("ann", "hello")]

    def test_a_sign_that_is_named_wins_and_an_unknown_one_is_asked_for(self, tmp_path):
        path = written(tmp_path / "m.csv", "user~text\nann~hello\n")
        with refused(naming=("m.csv", "'user'", "user~text", "--delimiter")):
            read(path)
        assert read(path, form=TextFormat(delimiter="~")) == [("ann", "hello")]
        for sign in ("", ";;", '"', "\n"):
            with refused(naming="--delimiter"):
                TextFormat(delimiter=sign)

    def test_a_blank_after_each_sign_is_no_part_of_a_field(self, tmp_path):
        assert read(written(tmp_path / "m.csv", 'user, text\nann, "a, b"\n')) == [("ann", "a, b")]
        assert read(written(tmp_path / "m.csv", 'user,text,"a, b"\nann, hi,x\n')) == [("ann", " hi")]

    def test_a_quote_that_is_never_closed_is_told(self, tmp_path):
        with refused(naming=("m.csv after line 1", "quotation mark")):
            read(written(tmp_path / "m.csv", 'user,text\nann,"x\nbob,y\n'))

    def test_excels_line_with_the_separator_is_no_header(self, tmp_path):
        path = written(tmp_path / "m.csv", "sep=;\r\nuser;text\r\nann;hello\r\nbob;\r\n")
        with refused(naming="m.csv line 4"):
            read(path, bad=BadRows(OnBadRows.STRICT))
        assert read(path) == [("ann", "hello")]

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("m.xlsx", "CSV or Parquet"),
            ("m.ods", "CSV or Parquet"),
            ("dump.sqlite", "sqlite3 -header -csv"),
            ("m.pkl", "can run code"),
            ("m.zip", "unpack"),
            ("m.wat", "heldin corpus formats"),
        ],
    )
    def test_files_of_other_programs_say_what_to_save(self, tmp_path, name, advice):
        (tmp_path / name).write_bytes(b"\x00\x01")
        with refused(by=open_source, naming=(name, advice)):
            open_source(tmp_path / name, Columns())


@pytest.mark.parametrize(
    ("name", "begins", "advice"),
    [
        ("m.csv", b"PK\x03\x04rest", "Excel workbook or a zip archive"),
        ("m.txt", b"SQLite format 3\x00", "a file for each group"),
        ("m.csv", gzip.compress(b"user,text\n", mtime=0), "end in .gz"),
        ("m.csv.gz", b"user,text\na,b\n", "remove .gz"),
        ("m.json", b"PAR1rest", "end in .parquet"),
    ],
)
def test_what_a_file_is_goes_before_its_name(tmp_path, name, begins, advice):
    """Also where a config names the format."""
    (tmp_path / name).write_bytes(begins)
    with refused(naming=(name, advice)):
        open_source(tmp_path / name, Columns()).look()
    kind = "jsonl" if ".json" in name else "csv"
    with refused(naming=(name, advice)):
        FileCorpus(kind=kind, path=tmp_path / name).source().look()


NAMES = [
    (1.0, "1"),
    (-3.0, "-3"),
    (2.0**53 - 1, "9007199254740991"),
    (7, "7"),
    (decimal.Decimal("12.00"), "12"),
    (uuid.UUID(int=5), str(uuid.UUID(int=5))),
]
NO_NAMES = [
    math.nan,
    1.5,
    2.0**53,
    math.inf,
    True,
    None,
    " ",
    decimal.Decimal("1.5"),
    decimal.Decimal("NaN"),
    [],
    {},
    b"x",
]


class TestUsers:
    @pytest.mark.parametrize(("value", "name"), NAMES)
    def test_whole_numbers_are_names(self, value, name):
        record, wrong = usable_record({"user": value, "text": "x"}, Columns().named())
        assert (record["user"], wrong) == (name, None)

    @pytest.mark.parametrize("value", NO_NAMES, ids=str)
    def test_other_values_are_none(self, value):
        assert usable_record({"user": value, "text": "x"}, Columns().named())[1] is not None

    def test_a_user_is_the_same_in_every_format(self, tmp_path):
        """pandas makes floats of whole numbers as soon as one is missing."""
        whole = pd.DataFrame({"user": [1, 2], "text": ["a", "b"]})
        gaps = pd.DataFrame({"user": [1, None, 2], "text": ["a", "x", "b"]})
        assert str(gaps["user"].dtype) == "float64"
        for name, table in (("whole", whole), ("gaps", gaps)):
            table.to_csv(tmp_path / f"{name}.csv", index=False)
            table.to_json(tmp_path / f"{name}.json", orient="records")
            table.to_parquet(tmp_path / f"{name}.parquet")
            datasets.Dataset.from_pandas(table).save_to_disk(str(tmp_path / f"{name}"))
            for ending in (".csv", ".json", ".parquet", ""):
                bad = BadRows(OnBadRows.SKIP)
                assert read(tmp_path / f"{name}{ending}", bad=bad) == [("1", "a"), ("2", "b")], (name, ending)
                assert bad.unusable == (name == "gaps")
        both = Several((open_source(tmp_path / "whole.csv", Columns()), open_source(tmp_path / "gaps.json", Columns())))
        store = build_store(both, tmp_path, on_bad=OnBadRows.SKIP)
        assert (store.users, store.counts.tolist()) == (["1", "2"], [2, 2])

    def test_text_that_looks_like_a_float_stays_text_where_a_format_has_types(self, tmp_path):
        assert read(written(tmp_path / "m.jsonl", '{"user": "1.0", "text": "x"}\n')) == [("1.0", "x")]
        assert read(written(tmp_path / "m.csv", "user,text\n1.0,x\n1.50,y\n1e3,z\n")) == [
            ("1", "x"),
            ("1.50", "y"),
            ("1e3", "z"),
        ]


COLUMNS = Columns(user="author.id", text="body.plain")
NESTED = [
    {"author": {"id": 1, "x": {"y": 2}}, "body": {"plain": "hello"}},
    {"author": {"id": 2}, "body": {"plain": "you"}},
]


class TestObjects:
    def test_dotted_names_reach_into_objects_in_every_format(self, tmp_path):
        written(tmp_path / "m.jsonl", "".join(json.dumps(row) + "\n" for row in NESTED))
        written(tmp_path / "m.json", json.dumps(NESTED))
        pq.write_table(pa.Table.from_pylist(NESTED), tmp_path / "m.parquet")
        datasets.Dataset.from_list(NESTED).save_to_disk(str(tmp_path / "saved"))
        for name in ("m.jsonl", "m.json", "m.parquet", "saved"):
            assert read(tmp_path / name, COLUMNS) == [("1", "hello"), ("2", "you")], name
            with refused(naming=("'author.name'", "author.id")):
                read(tmp_path / name, Columns(user="author.name", text="body.plain"))
            with refused(naming=("'author'", "author.id")):
                read(tmp_path / name, Columns(user="author", text="body.plain"))

    def test_a_column_with_a_dot_in_its_name_comes_first(self, tmp_path):
        row = {"author.id": "flat", "author": {"id": "deep"}, "text": "x"}
        assert value_at(row, "author.id") == "flat"
        written(tmp_path / "m.jsonl", json.dumps(row))
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "m.parquet")
        written(tmp_path / "m.csv", "author.id,text\nflat,x\n")
        for name in ("m.jsonl", "m.parquet", "m.csv"):
            assert read(tmp_path / name, Columns(user="author.id")) == [("flat", "x")], name

    def test_an_object_may_be_null_in_the_first_row(self, tmp_path):
        rows = [{"author": None, "text": "x"}, {"author": {"id": 1}, "text": "y"}]
        path = written(tmp_path / "m.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        assert read(path, Columns(user="author.id"), bad=BadRows(OnBadRows.SKIP)) == [("1", "y")]

    @pytest.mark.parametrize("turn", [{"role": "user", "content": "hi"}, {"from": "human", "value": "hi"}])
    def test_chats_are_refused_also_where_bad_rows_are_skipped(self, tmp_path, turn):
        path = written(tmp_path / "m.jsonl", json.dumps({"user": "ann", "messages": [turn]}) + "\n")
        with refused(naming=("'messages'", "chats", "heldin run")):
            read(path, Columns(text="messages"), bad=BadRows(OnBadRows.SKIP))


UMLAUTS = [{"user": "Jürgen", "text": "Schöne Grüße aus Köln, bis übermorgen."}] * 3


class TestEncodings:
    @pytest.mark.parametrize("kind", ["csv", "jsonl", "json"])
    def test_windows_1252_is_named_and_then_read(self, tmp_path, kind):
        path = tmp_path / f"m.{kind}"
        table = {
            "csv": "user,text\n" + "".join(f'{r["user"]},"{r["text"]}"\n' for r in UMLAUTS),
            "jsonl": "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in UMLAUTS),
            "json": json.dumps(UMLAUTS, ensure_ascii=False),
        }[kind]
        written(path, table, "cp1252")
        with refused(naming=(path.name, "UTF-8", "--encoding cp1252", "format.encoding")):
            read(path)
        assert read(path, form=TextFormat(encoding="cp1252")) == [(r["user"], r["text"]) for r in UMLAUTS]
        # Whoever skips them sees what was lost.
        bad = BadRows(OnBadRows.SKIP)
        assert read(path, bad=bad) == []
        assert (bad.unusable, bad.without_text) == (3, 0)

    @pytest.mark.parametrize("kind", ["csv", "jsonl"])
    def test_two_encodings_in_one_file_are_said_to_be_two(self, tmp_path, kind):
        """To read all of it as Windows-1252 would make two people of one."""
        row = "Jürgen,Schöne Grüße\n" if kind == "csv" else '{"user": "Jürgen", "text": "Schöne Grüße"}\n'
        header = b"user,text\n" if kind == "csv" else b""
        (tmp_path / f"m.{kind}").write_bytes(header + row.encode() + row.encode("cp1252"))
        with refused(naming=(f"m.{kind} line", "two encodings")) as caught:
            read(tmp_path / f"m.{kind}")
        assert "give --encoding" not in str(caught.value)

    def test_a_file_of_utf_8_is_read_as_such_whatever_the_option_for_the_other_says(self, tmp_path):
        path = written(tmp_path / "m.csv", "user,text\nJürgen,Grüße\n")
        assert read(path, form=TextFormat(encoding="cp1252")) == [("Jürgen", "Grüße")]
        said = open_source(path, Columns(), TextFormat(encoding="cp1252")).look()
        assert [s.states(FileText.UTF_8) for s in said] == [True]
        written(path, "user,text\nJürgen,Grüße\n", "cp1252")
        assert read(path, form=TextFormat(encoding="cp1252")) == [("Jürgen", "Grüße")]

    def test_an_alphabet_of_its_own_is_not_called_western(self, tmp_path):
        texts = {"cp1251": "Здравствуйте до завтра", "shift_jis": "こんにちは、明日", "gb18030": "你好，我们明天"}
        for encoding, text in texts.items():
            path = written(tmp_path / "m.csv", f"user,text\nann,{text}\n", encoding)
            with refused(naming=("m.csv line 2", "--encoding")) as caught:
                read(path)
            assert "Windows" not in str(caught.value)
            assert read(path, form=TextFormat(encoding=encoding)) == [("ann", text)]

    def test_a_header_in_another_encoding_is_told_at_once(self, tmp_path):
        path = written(tmp_path / "m.csv", "Straße;Prüfung;user;text\na;b;ann;hello\n", "cp1252")
        with refused(by="csv_header", naming=("m.csv", "header", "--encoding cp1252")):
            read(path)
        assert read(path, form=TextFormat(encoding="cp1252")) == [("ann", "hello")]

    @pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8])
    @pytest.mark.parametrize("kind", ["txt", "jsonl", "json"])
    def test_a_byte_order_mark_states_the_encoding(self, tmp_path, mark, kind):
        """Excel's "Unicode text" has tabs, and UTF-16 with a mark."""
        content = {
            "txt": "user\ttext\nJürgen\tGrüße\n",
            "jsonl": '{"user": "Jürgen", "text": "Grüße"}\n',
            "json": '[{"user": "Jürgen", "text": "Grüße"}]',
        }[kind]
        encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(mark, "utf-8")
        (tmp_path / f"m.{kind}").write_bytes(mark + content.encode(encoding))
        assert read(tmp_path / f"m.{kind}") == [("Jürgen", "Grüße")]
        found = open_source(tmp_path / f"m.{kind}", Columns()).look()
        assert any(s.states(FileText.ENCODING) for s in found) == (mark != codecs.BOM_UTF8)

    def test_broken_bytes_of_another_encoding_are_one_line(self, tmp_path):
        (tmp_path / "m.jsonl").write_bytes(
            codecs.BOM_UTF16_LE + '{"user": "a", "text": "x"}\n'.encode("utf-16-le")[:-1]
        )
        with refused(naming="m.jsonl"):
            read(tmp_path / "m.jsonl")
        with refused(naming=("--encoding", "klingon", "cp1252")):
            TextFormat(encoding="klingon")


GAPS = [
    {"user": "ann", "text": "hello"},
    {"user": "ann", "text": ""},
    {"user": "bob", "text": None},
    {"user": "bob", "text": " \n"},
    {"user": "cid"},
    {"user": "cid", "text": "you"},
]


class TestRowsWithoutText:
    def test_they_are_skipped_and_counted_with_their_users(self, tmp_path):
        path = written(tmp_path / "m.jsonl", "".join(json.dumps(row) + "\n" for row in GAPS))
        store = build_store(open_source(path, Columns()), tmp_path)
        skipped = store.report.skipped
        assert (skipped.without_text, skipped.unusable, skipped.users, skipped.users_lost) == (4, 0, 3, 1)
        assert store.users == ["ann", "cid"]
        again = build_store(open_source(path, Columns()), tmp_path)
        assert (again.report.reused, again.report.skipped) == (True, skipped)
        with refused(naming=("m.jsonl line 2", "'text'", "--strict")):
            build_store(open_source(path, Columns()), tmp_path, on_bad=OnBadRows.STRICT)

    def test_a_user_whose_texts_are_in_another_file_is_not_lost(self, tmp_path):
        one = written(
            tmp_path / "one.jsonl",
            '{"user": "ann", "text": ""}\n{"user": "B", "text": ""}\n{"user": "cid", "text": "x"}\n',
        )
        two = written(tmp_path / "two.jsonl", '{"user": "ann", "text": "hello"}\n{"user": "bob", "text": "y"}\n')
        sources = [open_source(path, Columns()) for path in (one, two)]
        first = build_store(sources[0], tmp_path, aliases={"B": "bob"})
        assert first.report.skipped.users_lost == 2
        # Appended to the store of the first, and read at once.
        for cache in (tmp_path, tmp_path / "other"):
            both = build_store(Several(tuple(sources)), cache, aliases={"B": "bob"})
            counts = both.report.skipped
            assert (counts.without_text, counts.users, counts.users_lost) == (2, 2, 0)

    def test_missing_values_of_pandas_are_no_text(self, tmp_path):
        table = pd.DataFrame(
            {"user": ["ann", "bob"], "text": ["hello", None], "date": [datetime.datetime(2001, 1, 2), pd.NaT]}
        )
        table.to_csv(tmp_path / "m.csv", index=False)
        table.to_parquet(tmp_path / "m.parquet")
        table.to_json(tmp_path / "m.json", orient="records", date_format="iso")
        written(tmp_path / "m.jsonl", '{"user": "ann", "text": "hello"}\n{"user": "bob", "text": NaN}\n')
        for name in ("m.csv", "m.parquet", "m.json", "m.jsonl"):
            bad = BadRows()
            columns = Columns() if name == "m.jsonl" else Columns(date="date")
            assert read(tmp_path / name, columns, bad=bad) == [("ann", "hello")]
            assert (bad.without_text, bad.users) == (1, {"bob"})

    def test_the_command_says_what_it_skipped_and_every_fault_has_its_own_advice(self, call, tmp_path):
        path = written(tmp_path / "m.jsonl", "".join(json.dumps(row) + "\n" for row in GAPS))
        code, out, _ = call("corpus", "build", path, "--json")
        fields = json.loads(out)["skipped"]
        assert (code, fields["without_text"], fields["users_lost"]) == (0, 4, 1)
        assert names(fields["first"], "m.jsonl line 2")
        faults = {
            '{"user": "ann", "text": 5}': "--text",
            '{"user": null, "text": "x"}': "--user",
            '{"user": 1.5, "text": "x"}': "--user",
            '{"user": "ann", "text"': "--skip-bad-rows",
            '{"user": "ann", "text": "x", "text": "y"}': "--skip-bad-rows",
        }
        for row, advice in faults.items():
            path.write_text(json.dumps(ROWS[0]) + "\n" + row + "\n", encoding="utf-8")
            code, _, err = call("corpus", "build", path)
            assert (code, err.count("\n")) == (2, 1), row
            assert names(err, "m.jsonl line 2", advice, "--skip-bad-rows"), row
            assert "skip_bad" not in err
            assert call("corpus", "build", path, "--skip-bad-rows")[0] == 0


def test_the_command_lists_the_formats_and_says_how_it_read_a_file(call, tmp_path):
    code, out, _ = call("corpus", "formats")
    assert code == 0
    assert names(out, ".jsonl", ".tsv", ".parquet", "save_to_disk", "author.id")
    assert max(map(len, out.splitlines())) <= 100
    assert all(f"\n{form} " in out for form in RowFormat)
    code, out, _ = call("corpus", "formats", "--json")
    assert {form["kind"] for form in json.loads(out)["formats"]} >= {
        "jsonl",
        "csv",
        "parquet",
        "mbox",
        "iob",
        "maildir",
    }
    path = written(tmp_path / "m.csv", "who;what\nann;hello\n")
    code, out, err = call("corpus", "build", path, "--user", "who", "--text", "what")
    assert (code, out.startswith("1 user, 1 record")) == (0, True)
    assert names(err, "m.csv", "semicolons")
