"""Sentences about unusable rows, and about how a file was read."""

from heldin.words.statement import Code


class RowFault(Code):
    """The fault of a row; ``place`` gives its file and line."""

    AT = "{place}: {fault}"
    NO_TEXT = "no text in column '{column}'"
    NOTHING_COUNTS = "no turn that counts has a text (counting: {counting}; turns of: {roles})"
    NOT_TEXT = "column '{column}' has {kind} instead of text"
    NO_VALUE = "no {role} in column '{column}' (found {kind})"
    NOT_WHOLE = "column '{column}' has a number that is not whole, which cannot name a {role}"
    NOT_AN_OBJECT = "a JSON object was expected, found {kind}"
    BROKEN_JSON = "broken JSON ({reason} at column {column})"
    UNREADABLE_JSON = "JSON that cannot be read ({reason})"
    KEY_TWICE = "key '{key}' is given twice, so its value is ambiguous"
    SURROGATE = "column '{column}' holds a lone surrogate, which is not Unicode text"
    NOT_DECODED = "not {encoding} text, at character {character}"
    OTHER_FIELDS = "not {fields} fields as in the header"
    NO_SPANS = (
        "column '{column}' holds no parts of the text: give pairs of whole numbers, in order, such as [[0, 12]], up to"
        " character {characters}"
    )
    NO_TIME = "no time in '{column}'"
    NO_ARXIV_ID = "no arXiv id in '{column}'"
    OTHER_FORM = "unusable: {reason}"


class RowRemedy(Code):
    """The remedy for an unusable row."""

    SKIP = "correct the row, or skip such rows with --skip-bad-rows"
    NAME_COLUMN = "name the column with --{role} (in a config, columns.{role}), or skip such rows with --skip-bad-rows"
    NOT_STRICT = "give the row a text, or leave --strict out to skip rows without text"
    ENCODING = "the bytes look like {name}: give --encoding {encoding} (in a config, format.encoding)"
    MIXED = (
        "rows before it are UTF-8, so the file mixes two encodings: convert the file to one encoding. --encoding"
        " would garble the other rows, and split users in two"
    )
    SOME_ENCODING = "name the encoding with --encoding, such as cp1252 or gb18030 (in a config, format.encoding)"


class FileText(Code):
    """The form of a file, as heldin detected it."""

    DELIMITER = "{file}: fields are separated by {delimiter}"
    ENCODING = "{file}: read as {encoding}, which its first bytes state"
    UTF_8 = "{file}: read as UTF-8, which all of its bytes are, and not as {encoding}"
    VALUES = "{file}: read as one JSON document, object by object"
    BESIDES = (
        "format {format} (column '{column}'). Rows have {besides} too, which is not read. To read it, set"
        " corpus.format: {besides} (in the config of an audit rows.format), or name the column of the messages (--text)"
    )
    TURNS = "format {format} (column '{column}'), loss on {loss}, scored: {attack}; turns found by {found_by}"
    TURNS_NOT_TRL = (
        "format {format} (column '{column}'), scored: {attack}; turns found by {found_by}. TRL has another text of this"
        " template, on which it trains with assistant_only_loss: for such a model name that template (--template)"
    )
    TURNS_SCORED = "format {format} (column '{column}'), scored: {attack}; turns found by {found_by}"


class SkippedText(Code):
    """Rows that were left out of a file or a group."""

    NO_TEXT = ("{rows:,} without text", ", ")
    UNUSABLE = ("{rows:,} unusable", ", ")
    ROWS = "{where}: skipped {parts} of {rows:,} rows, such as {first}"
    LOST = "{where}: users left without any text: {users:,}"
    OF_CORPUS = ("{parts} of {rows:,} rows", "; ")
    OF_MEMBERS = ("{parts} of the members' {rows:,} rows", "; ")
    OF_NON_MEMBERS = ("{parts} of the non-members' {rows:,} rows", "; ")
    ALL = "Rows left out: {groups}."
    USERS_LOST = "Users without any text left, who are not audited: {users:,}."
    BOTH_LOST = "People without any text left, who are not audited: {members:,} members and {others:,} non-members."
    UNEVEN = (
        "Warning: chance does not explain this difference. Of every 100 members {members:.0f} have such rows and"
        " {members_lost:.0f} no text left; of every 100 non-members {others:.0f} and {others_lost:.0f}. Check that both"
        " files were made in the same way."
    )
    ONE_EACH = "Every user has one text. Check that the column of users names people and not rows."
