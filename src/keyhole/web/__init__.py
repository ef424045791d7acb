"""The explorer: a run in the browser, served live or exported as files.

schema/       every request and every answer as a type; addresses.py says where; openapi.py and typedefs.py describe them
contract.py   the answers at the addresses below data/, built from a run; pack.py makes them small
search.py     the indexes for searching: by token, word and prefix; worth.py chooses cells to begin with
routes.py     the addresses over HTTP, with the page; answers.py encodes, guard.py decides who may ask
served.py     which run is served, and whether it is still there
live.py       the requests that need the model
connection.py bounds on what a client may send and how long it may take; serve.py starts the server
static/       the page
"""
