"""Sentences on rows that cannot be used, and on how a file was read."""

from heldin.words.statement import Code


class RowFault(Code):
    """What is wrong with a row; ``place`` names file and line."""

    AT = "{place}: {fault}"
    NO_TEXT = "no text in column '{column}'"
    NOT_TEXT = "column '{column}' holds {kind}, not text"
    NO_VALUE = "no {role} in column '{column}' (found {kind})"
    NOT_WHOLE = "column '{column}' holds a number that is not whole, and names no {role}"
    NOT_AN_OBJECT = "a JSON object was expected, found {kind}"
    BROKEN_JSON = "broken JSON ({reason} at column {column})"
    UNREADABLE_JSON = "JSON that cannot be read ({reason})"
    KEY_TWICE = "key '{key}' is given twice, so its value is ambiguous"
    SURROGATE = "column '{column}' holds a lone surrogate, which is not Unicode text"
    NOT_DECODED = "not {encoding} text, at character {character}"
    OTHER_FIELDS = "not {fields} fields as in the header"
    NO_TIME = "no time in '{column}'"
    NO_ARXIV_ID = "no arXiv id in '{column}'"
    OTHER_FORM = "unusable: {reason}"


class RowRemedy(Code):
    """What to do about a row that cannot be used."""

    SKIP = "correct the row, or skip such rows with --skip-bad-rows"
    NAME_COLUMN = "name the column with --{role}, or skip such rows with --skip-bad-rows"
    NOT_STRICT = "write its text, or leave --strict out to skip rows without text"
    ENCODING = "the bytes look like {name}: give --encoding {encoding} (in a config, format.encoding)"
    SOME_ENCODING = "name the encoding with --encoding, such as cp1252 or gb18030 (in a config, format.encoding)"


class FileText(Code):
    """What heldin found out about the form of a file."""

    DELIMITER = "{file}: fields are separated by {delimiter}"
    ENCODING = "{file}: read as {encoding}, which its first bytes state"
    ARRAY = "{file}: one JSON array"


class SkippedText(Code):
    """Rows that were left out of a file or a group."""

    NO_TEXT = ("{rows:,} without text", ", ")
    UNUSABLE = ("{rows:,} unusable", ", ")
    ROWS = "{where}: skipped {parts} of {rows:,} rows; the first: {first}"
    LOST = "{where}: users left without any text: {users:,}"
    OF_CORPUS = ("{parts} of {rows:,} rows", "; ")
    OF_MEMBERS = ("{parts} of {rows:,} rows of members", "; ")
    OF_NON_MEMBERS = ("{parts} of {rows:,} rows of non-members", "; ")
    ALL = "Skipped: {groups}."
    USERS_LOST = "Users left without any text: {users:,}."
    BOTH_LOST = "People left without any text: {members:,} members and {others:,} non-members."
    UNEVEN = (
        "Warning: rows were skipped for {members:.0f} of every 100 members and {others:.0f} of every 100 non-members,"
        " which chance does not explain. Check that both files were made in the same way."
    )
