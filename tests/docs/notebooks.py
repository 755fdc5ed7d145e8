"""Notebooks run in this process, and what Jupyter would show of each cell.

``make notebooks`` stores the outputs. A test runs the notebooks again, and compares.
"""

import ast
import base64
import contextlib
import io
import json
import re
from typing import Any

import numpy as np
from matplotlib import pyplot
from PIL import Image

from tests.docs.test_pages_run import ran
from tests.docs.test_theory import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
_WIDTH = 40  # to which figures are reduced before they are compared
_AS_MANY = 0.1, 0.25  # numbers may differ by this, and this share: coins and processors differ


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def write(path, notebook):
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def code_cells(notebook, tag=None):
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in cells if tag is None or tag in cell["metadata"].get("tags", ())]


def outputs(cells, folder):
    """The outputs of code cells that run in turn in a folder."""
    names: dict[str, Any] = {}
    pyplot.close("all")  # a kernel begins without figures
    with contextlib.chdir(folder), pyplot.rc_context({"savefig.dpi": 72}):
        return [_outputs("".join(cell["source"]), names, folder) for cell in cells]


def _outputs(source, names, folder):
    lines = source.splitlines()
    printed = [ran(line[1:], folder) for line in lines if line.startswith("!")]
    body = ast.parse("\n".join(line for line in lines if not line.startswith("!"))).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    text = "".join([*printed, out.getvalue()])
    found = [{"name": "stdout", "output_type": "stream", "text": _lines(text)}] if text else []
    if value is not None:
        html = getattr(value, "_repr_html_", None)
        # Jupyter shows the first of both; the second is for programs without tables.
        shown = {"text/html": _lines(html())} if html else {}
        shown["text/plain"] = [type(value).__name__] if html else _lines(repr(value))
        found.append({"data": shown, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return found + [_figure(number) for number in pyplot.get_fignums()]


def _lines(text):
    return text.splitlines(keepends=True)


def _figure(number):
    figure, content = pyplot.figure(number), io.BytesIO()
    figure.savefig(content, format="png")
    pyplot.close(figure)
    data = {"image/png": base64.b64encode(content.getvalue()).decode()}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def difference(stored, fresh):
    """What differs between the outputs of a cell; "" if nothing that a reader would notice."""
    kinds = [[_kind(output) for output in each] for each in (stored, fresh)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} is stored, {kinds[1]} is shown"
    return "; ".join(filter(None, (_differs(*pair) for pair in zip(stored, fresh, strict=True))))


def _kind(output):
    return output["output_type"], *output.get("data", {})


def _differs(stored, fresh):
    data = stored.get("data", {})
    if "image/png" in data:
        apart = np.abs(_pixels(data["image/png"]) - _pixels(fresh["data"]["image/png"])).mean()
        return "" if apart < 0.1 else f"figures differ by {apart:.2f}"
    one, other = _text(stored), _text(fresh)
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return f"stored: {one}\nshown: {other}"
    numbers = np.array([[float(n.replace(",", "")) for n in _NUMBER.findall(text)] for text in (one, other)])
    return "" if np.allclose(numbers[1], numbers[0], atol=_AS_MANY[0], rtol=_AS_MANY[1]) else f"{one} is now {other}"


def _pixels(png):
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("L")
    return np.asarray(image.resize((_WIDTH, _WIDTH))) / 255


def _text(output):
    data = output.get("data", {})
    html = "".join(data.get("text/html", ()))
    shown = re.sub(r"<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL) or "".join(data.get("text/plain", ()))
    return " ".join((shown or "".join(output.get("text", ()))).split())


def numbered(notebook):
    """The notebook with numbers of execution, as if all its cells had run in turn."""
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell["execution_count"] = number
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
    return notebook
