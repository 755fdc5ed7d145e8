"""The exit codes of the command line: each has one meaning, here and in docs/ci.md."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The outcome of a command, for a script that reads nothing else."""

    DONE = 0
    BUG = 1
    BAD_INPUT = 2
    CERTIFIED = 3
    INDICATIVE = 4
    RESUMABLE = 5
    UNSAFE = 6
    OTHER_MECHANISM = 7
    GATED = 8
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """Return the outcome in words."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.BUG: "a bug in heldin",
    ExitCode.BAD_INPUT: "wrong input or config, or a file that differs from its record",
    ExitCode.CERTIFIED: "a claim is contradicted (certified)",
    ExitCode.INDICATIVE: "a claim is contradicted (indicative)",
    ExitCode.RESUMABLE: "stopped; the same command resumes",
    ExitCode.UNSAFE: "white-box: the trainer is unsafe on input that is not finite",
    ExitCode.OTHER_MECHANISM: "white-box: the trainer does not run the stated mechanism",
    ExitCode.GATED: "a condition of --fail-on holds",
    ExitCode.INTERRUPTED: "interrupted",
}
