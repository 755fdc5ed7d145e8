"""Figure 8 of Lai et al.: documents by their number of sentences, from the command that the page names."""

import gzip


def test_documents_are_counted_by_their_sentences(call, tmp_path):
    file = tmp_path / "eng.train.gz"
    sentence = "Peter NNP I-NP I-PER\nsleeps{number} VBZ I-VP O\n\n"
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        for document, sentences in enumerate((2, 3, 5, 9, 14)):
            lines.write("-DOCSTART- -X- O O\n\n")
            lines.writelines(sentence.format(number=100 * document + its) for its in range(sentences))
    code, out, err = call("corpus", "stats", file)
    assert code == 0, err
    bars = [line.split() for line in out.split("users by number of records")[1].split("\n\n")[0].strip().splitlines()]
    assert [(int(low), int(high), int(users)) for low, _, high, users, *_ in bars] == [(2, 3, 2), (4, 7, 1), (8, 15, 2)]
    summary = out.split("users by number of records")[0].split()
    assert {"5", "33"} <= set(summary)
