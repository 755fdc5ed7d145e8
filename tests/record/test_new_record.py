"""A record is written once for what it says: its date is that of the report that somebody may have signed."""

from heldin.record.document import Body, read_record, write_new_record, write_record


def test_a_record_that_says_the_same_stays_with_its_date_and_one_that_does_not_is_written(finished, tmp_path):
    path = tmp_path / "record.json"
    earlier = read_record(finished / "record.json").model_copy(update={"created": "2020-01-01T00:00:00+00:00"})
    write_record(earlier, path)
    body = Body.model_validate({name: getattr(earlier, name) for name in Body.model_fields})
    elsewhere = earlier.environment.model_copy(update={"threads": 99})

    def written(its, **changes):
        said = {"name": earlier.name, "command": "again", "gradient_norms": earlier.gradient_norms, **changes}
        return write_new_record(its, elsewhere, tmp_path, **said)

    before = path.read_bytes()
    assert written(body) == earlier
    assert path.read_bytes() == before
    other = written(body.model_copy(update={"resamples": body.resamples + 1}))
    assert other.created > earlier.created
    assert (read_record(path), other.command) == (other, "again")
    assert written(body, name="another").name == "another"
    # What nobody can read is written anew.
    path.write_text("{", encoding="utf-8")
    assert written(body) == read_record(path)
