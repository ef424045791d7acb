"""The types of schema/ in TypeScript, for the page's JavaScript to be checked against.

    python -m keyhole.web.typedefs      writes web/types.d.ts

The file is in the repository, and a test compares it with the types.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, inspect

from . import addresses

FILE = Path(__file__).with_name("types.d.ts")
HEAD = "// Made from schema/: python -m keyhole.web.typedefs\n"


def typedefs() -> str:
    """One interface or tuple type per type of the contract, in the order in which they are needed."""
    made: dict[str, str] = {}
    for each in addresses.TYPES:
        _name(inspect.type_info(each), made)
    return "\n".join([HEAD, *made.values()])


def _name(struct: Any, made: dict[str, str]) -> str:
    """The name of a record or row; its definition goes to `made`, after the types it refers to."""
    name = struct.cls.__name__
    if name not in made:
        made[name] = ""  # keeps the name, and the order of first use
        # what an answer may leave out is optional; what a request may leave out, the page always sends
        fields = [(each.encode_name, _type(each.type, made), _left_out(each)) for each in struct.fields]
        about = f"/** {(struct.cls.__doc__ or '').strip()} */\n" if struct.cls.__doc__ else ""
        if struct.array_like:
            body = f"type {name} = [{', '.join(f'{field}: {kind}' for field, kind, _ in fields)}];\n"
        else:
            rows = "".join(f"  {field}{'?' * optional}: {kind};\n" for field, kind, optional in fields)
            body = f"interface {name} {{\n{rows}}}\n"
        made[name] = f"{about}export {body}"
    return str(name)


def _left_out(field: inspect.Field) -> bool:
    return not field.required and field.default is field.default_factory is NODEFAULT  # its default is UNSET


def _type(kind: Any, made: dict[str, str]) -> str:
    match kind:
        case inspect.Metadata():
            return _type(kind.type, made)
        case inspect.StructType():
            return _name(kind, made)
        case inspect.UnionType():
            kinds = (_type(each, made) for each in kind.types)
            return " | ".join(sorted(kinds, key=lambda each: each == "null"))
        case inspect.ListType():
            item = _type(kind.item_type, made)
            return f"({item})[]" if isinstance(kind.item_type, inspect.UnionType | inspect.LiteralType) else f"{item}[]"
        case inspect.TupleType():
            return f"[{', '.join(_type(each, made) for each in kind.item_types)}]"
        case inspect.DictType():
            return f"Record<string, {_type(kind.value_type, made)}>"
        case inspect.LiteralType():
            return " | ".join(json.dumps(value) for value in kind.values)
    return _PLAIN[type(kind)]


_PLAIN: dict[type, str] = {
    inspect.StrType: "string",
    inspect.IntType: "number",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.NoneType: "null",
    inspect.AnyType: "any",
}


if __name__ == "__main__":
    FILE.write_text(typedefs(), encoding="utf-8")
