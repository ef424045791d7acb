"""A cell and a token as plain data, for `--json`: numbers as numbers, texts as they are. The fields are listed in docs/explorer.md."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ..store import collections, kinds, patterns, values
from ..store.run import Cell, Trigger
from . import firing

TRIGGER = ("coefficient", "unit", "position", "document", "count", "prefix", "last_token", "next_token")


def cell(cell: Cell, *, limit: int | None = None) -> dict[str, Any]:
    """Everything that `keyhole show` prints."""
    run, stats, place = cell.run, cell.stats, cell.place
    labelled, found = kinds.of(run), patterns.of(run)
    near = values.similar_arrays(run)
    keys = [] if found is None else [found.key(place, side) for side in (1, -1)]
    return {
        "address": cell.address,
        "layer": cell.layer,
        "cell": cell.index,
        "orientation": cell.orientation,
        "dead": cell.dead,
        "stats": {each.name: getattr(stats, each.name) for each in fields(stats) if each.name != "dead"}
        | {name: stats[name] for name in ("active_fraction", "rms", "peak")}
        | {"firing": firing.of(cell)},
        "kinds": None if labelled is None else [shown.kind.name for shown in labelled.of(place) if shown.has],
        "label": None if found is None else found.label(place),
        "patterns": [
            {"side": key.side, "kind": pattern.kind, "description": pattern.description}
            | {
                "triggers": list(pattern.triggers),
                "lift": pattern.lift,
                "q_value": pattern.q_value,
                "auprc": pattern.auprc,
            }
            for key in keys
            if key is not None
            for pattern in key.patterns
        ],
        "values": [_value(values.Values(run, lens), cell) for lens in values.available(run)],
        "similar_values": None if near is None else [asdict(each) for each in values.similar_at(run, near, place)],
        "triggers": [trigger(cell, each) for each in cell.triggers[:limit]],
        "triggers_negative": [trigger(cell, each) for each in cell.triggers_negative[:limit]],
        **collections.read(run).get(place, collections.Marks()).to_json(),
    }


def trigger(cell: Cell, trigger: Trigger) -> dict[str, Any]:
    document = cell.run.unit_source(trigger.unit)[0]
    said = (trigger.coefficient, trigger.unit, trigger.position, document, trigger.count, trigger.prefix)
    return dict(zip(TRIGGER, (*said, trigger.tokens[-1], trigger.next_token), strict=True))


def _value(said: values.Values, cell: Cell) -> dict[str, Any]:
    place, at = cell.place, (cell.layer, cell.index)
    hits, known = map(int, said.hits(place))
    return {
        "lens": said.lens,
        "norm": float(said.norms[place]),
        "max_prob": float(said.max_prob[place]),
        "entropy": float(said.entropy[place]),
        "rank": int(said.ranks[place]) or None,
        "agreement": {"hits": hits, "of": known},
        "promoted": [_said(each) for each in said.promoted(*at)],
        "demoted": [_said(each) for each in said.demoted(*at)],
    }


def _said(said: values.Said) -> dict[str, Any]:
    return {"token": said.piece, "id": said.token, "logit": said.logit}


def token(said: values.Values, token: int, limit: int) -> dict[str, Any]:
    """The cells whose values promote a token, and those that demote it."""
    found = patterns.of(said.run)

    def speakers(listed: list[values.Speaker]) -> list[dict[str, Any]]:
        return [
            asdict(each)
            | {
                "max_prob": float(said.max_prob[said.run.cells.place(each.layer, each.cell)]),
                "label": None if found is None else found.label(said.run.cells.place(each.layer, each.cell)),
            }
            for each in listed[:limit]
        ]

    promoting, demoting = said.promoting(token), said.demoting(token)
    return {
        "token": said.run.vocabulary.piece(token),
        "id": token,
        "lens": said.lens,
        "among": values.KEPT,
        "count": {"promoting": len(promoting), "demoting": len(demoting)},
        "promoting": speakers(promoting),
        "demoting": speakers(demoting),
    }
