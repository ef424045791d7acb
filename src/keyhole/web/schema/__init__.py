"""The explorer's data contract: every request and every answer as a type, written once.

contract.py and live.py build these types, answers.py encodes them, export/site.py writes the same bytes as files, openapi.py
describes them, and typedefs.py turns them into web/types.d.ts, which the page's JavaScript is checked against. A field is
added, renamed or removed here and nowhere else.

The library is msgspec: one wheel of 0.2 MB without dependencies that builds, encodes, validates (`decode`) and describes (JSON
Schema 2020-12, the dialect of OpenAPI 3.1) the same types. Its encoder is faster than `json`, so a typed answer costs no
more than a dict did. Pydantic does the same with 10 MB and a slower start. TypedDict has neither validation nor a JSON
Schema: both would have to be written by hand.

There is one file per kind of page. Everything in them is a name of this package, so a new type is written in its file and nowhere
else.

A `Row` travels as a JSON array of its fields: an export consists mostly of those.
"""

# ruff: noqa: F403 - the files hold the contract and nothing else

from .base import *
from .below import *
from .beside import *
from .cell import *
from .coming import *
from .documents import *
from .errors import *
from .export import *
from .generation import *
from .layer import *
from .maps import *
from .model import *
from .nearest import *
from .overview import *
from .people import *
from .points import *
from .prompt import *
from .run import *
from .search import *
from .sets import *
from .table import *
from .trying import *
from .uses import *
