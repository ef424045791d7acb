"""The explorer: a run looked through in the browser, live or as files.

contract.py   a run → the JSON behind every data/… address
search.py     what is turned around for searching: tokens, words, prefixes
routes.py     those addresses over HTTP, with the page; guard.py decides who may ask
served.py     which run is served, and whether it is still there
connection.py how long and how much a client may send and read
live.py       what needs the model: a prompt, read
"""
