"""The picture of the architecture, docs/images/architecture.svg: the steps of a job, what does them, what they leave.

``make golden`` writes it.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "architecture.svg"

# Each step, the packages that do it, and the file that the next step reads.
STEPS = (
    ("Read texts", "corpus", "store of records"),
    ("Draw the members", "stages, canaries", "ledger/"),
    ("Plan and train", "defenses, finetune", "plan.json, checkpoints/"),
    ("Attack", "attacks, models", "scores.parquet"),
    ("Judge", "audit, bounds, record", "record.json"),
    ("Report", "reports, words", "report.pdf"),
)
# Each command, and its first and last step; between two parts of a command somebody else trains.
COMMANDS = (
    ("run, sweep", ((0, 5),)),
    ("audit", ((3, 5),)),
    ("plant, audit-planted", ((0, 1), (3, 5))),
    ("white-box", ((2, 2),)),
    ("verify, report", ((4, 5),)),
)
# Scores are joined to membership in this step; the attack before it does not read the ledger.
_JOINED = 4

_LEFT, _WIDE, _HIGH, _STEP, _TOP = 44, 262, 62, 104, 36
_BAR, _BARS = 44, 334

_STYLE = """\
  text { font-family: system-ui, sans-serif; font-size: 16px; fill: #1b1f24; }
  .small, .file { font-size: 14px; }
  .file { font-family: ui-monospace, monospace; }
  .name { font-weight: bold; }
  .page { fill: #ffffff; }
  .step { fill: #e8f1fa; stroke: #0072b2; }
  .command { fill: #fdf1d8; stroke: #b27d00; }
  .flow { stroke: #57606a; stroke-width: 2; fill: none; }
  .head { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .page { fill: #161b22; }
    .step { fill: #10304a; }
    .command { fill: #3d2f0d; }
    .flow { stroke: #9aa4ae; }
    .head { fill: #9aa4ae; }
  }
"""


def picture() -> str:
    """The picture as SVG."""
    width, height = _BARS + _BAR * len(COMMANDS) + 12, _TOP + _STEP * len(STEPS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{'; '.join(f'{name}: {packages}' for name, packages, _ in STEPS)}</title>",
        f"<style>\n{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        f'<text x="{_LEFT}" y="24" class="small">steps, packages, files</text>',
        f'<text x="{_BARS}" y="24" class="small">heldin COMMAND</text>',
        *_steps(),
        *_ledger(),
        *_commands(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _steps() -> Iterator[str]:
    for number, (name, packages, file) in enumerate(STEPS):
        y, middle = _TOP + number * _STEP, _LEFT + 24
        yield f'<rect class="step" x="{_LEFT}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="6"/>'
        yield f'<text x="{_LEFT + 12}" y="{y + 26}" class="name">{name}</text>'
        yield f'<text x="{_LEFT + 12}" y="{y + 48}" class="file">{packages}</text>'
        end = y + _STEP if number + 1 < len(STEPS) else y + _STEP - 10
        yield f'<path class="flow" d="M{middle} {y + _HIGH}V{end - 8}"/>'
        yield _head(middle, end)
        yield f'<text x="{middle + 14}" y="{y + _HIGH + 26}" class="file">{file}</text>'


def _ledger() -> Iterator[str]:
    """Who is a member goes from the coins to the judgement, past the attack."""
    start, stop = (_TOP + step * _STEP + _HIGH // 2 for step in (1, _JOINED))
    x = 20
    yield f'<path class="flow" stroke-dasharray="5 4" d="M{_LEFT} {start}H{x}V{stop}H{_LEFT - 8}"/>'
    yield f'<path class="head" d="M{_LEFT - 10} {stop - 6}l10 6l-10 6z"/>'
    yield f'<text class="small" text-anchor="middle" transform="translate({x - 6} {(start + stop) // 2}) rotate(-90)">'
    yield "who is a member</text>"


def _commands() -> Iterator[str]:
    for number, (name, parts) in enumerate(COMMANDS):
        x = _BARS + number * _BAR
        ends = [(_TOP + first * _STEP, _TOP + last * _STEP + _HIGH) for first, last in parts]
        for begin, end in ends:
            yield f'<rect class="command" x="{x}" y="{begin}" width="{_BAR - 10}" height="{end - begin}" rx="6"/>'
        for (_, end), (begin, _) in itertools.pairwise(ends):
            yield f'<path class="flow" stroke-dasharray="2 4" d="M{x + 17} {end}V{begin}"/>'
        begin, end = max(ends, key=lambda part: part[1] - part[0])
        # A name that is longer than its bar is below it.
        middle = (begin + end) // 2 if end - begin > 8 * len(name) else end + 8 + 4 * len(name)
        place = f"translate({x + 22} {middle}) rotate(-90)"
        yield f'<text class="small" text-anchor="middle" transform="{place}">{name}</text>'


def _head(x: int, y: int) -> str:
    return f'<path class="head" d="M{x - 6} {y - 10}h12l-6 10z"/>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
