"""A client of `keyhole serve`: what a cell does, which cells promote a token, what a prompt is continued with.

    python examples/client.py cell L12.345
    python examples/client.py token " freedom"
    python examples/client.py prompt "The capital of France is"

KEYHOLE_URL names the server, if it is not http://127.0.0.1:8765; KEYHOLE_TOKEN is its token, if it has one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

URL = os.environ.get("KEYHOLE_URL", "http://127.0.0.1:8765").rstrip("/")
if "://" not in URL:
    URL = f"http://{URL}"


def ask(address: str, question: dict[str, Any] | None = None) -> Any:
    """The answer at an address: GET, or POST if there is something to ask."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("KEYHOLE_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    body = None if question is None else json.dumps(question).encode()
    try:
        with urlopen(Request(f"{URL}/{address}", body, headers)) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise SystemExit(f"{error.code}: {json.load(error)['error']['message']}") from None
    except URLError as error:
        raise SystemExit(f"No server at {URL} ({error.reason}). Start one: keyhole serve RUN") from None


def name(layers: list[dict[str, Any]], place: int) -> str:
    """The address of the cell at a place of the axis."""
    layer = next(each for each in reversed(layers) if each["offset"] <= place)
    inside = place - layer["offset"]
    if "experts" in layer:
        return f"{layer['layer']}.E{inside // layer['width']}.{inside % layer['width']}"
    return f"{layer['layer']}.{inside}"


def cell(address: str) -> None:
    """A cell, by its address: L12.345, or 12/345, 12.345, l12.345."""
    run = ask("data/run.json")
    written = address.replace("/", ".").upper().replace("ENC.", "enc.").replace("DEC.", "dec.")
    layer, _, inside = (written if "L" in written else f"L{written}").rpartition(".")
    number = next((n for n, each in enumerate(run["layers"]) if each["layer"] == layer), None)
    if number is None or not inside.isdigit():
        first, last = (run["layers"][end]["layer"] for end in (0, -1))
        raise SystemExit(f"{address} is no cell. Its form is {first}.345, with a layer from {first} to {last}.")
    found = ask(f"data/cells/{number}/{int(inside)}.json")
    for value in found["values"][:1]:
        print("promotes", [token for token, _ in value["promoted"][:8]])
        print("demotes ", [token for token, _ in value["demoted"][:8]])
    for coefficient, _unit, position, before, _after, count, tokens, *_ in found["triggers"][:10]:
        shown = tokens if isinstance(tokens, list) else tokens.split(run["packing"]["separator"])
        text = "".join(shown[: position - before + 1])
        print(f"{coefficient:8.3f}  {text[-80:]!r}" + (f"  ×{count}" if count > 1 else ""))


def token(text: str) -> None:
    run, pieces = ask("data/run.json"), ask("data/vocabulary.json")["pieces"]
    if text not in pieces:
        raise SystemExit(f"{text!r} is no token of {run['model']['name']}. Mind the space before a word.")
    number = pieces.index(text)
    found = ask(f"data/tokens/{number // run['packing']['page']}.json")
    for place, logit, rank, *_ in found["promoted"].get(str(number), [])[:20]:
        print(f"{name(run['layers'], place):>12}  logit {logit:.2f}, rank {rank}")


def prompt(text: str) -> None:
    layers = ask("data/run.json")["layers"]
    found = ask("api/prompt", {"text": text})
    for piece, p in found["prediction"][:5]:
        print(f"{p:7.2%}  {piece!r}")
    cells = [(one["effect"], layer["layer"], one["cell"]) for layer in found["layers"] for one in layer["effective"]]
    print(f"largest effects on {found['token']!r}:")
    for effect, layer, number in sorted(cells, key=lambda each: -abs(each[0]))[:10]:
        print(f"{effect:+8.3f}  {name(layers, layers[layer]['offset'] + number)}")


if __name__ == "__main__":
    commands = {"cell": cell, "token": token, "prompt": prompt}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    commands[sys.argv[1]](sys.argv[2])
