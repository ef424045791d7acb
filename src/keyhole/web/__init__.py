"""The explorer: a run looked through in the browser, live or as files.

contract.py   a run → the JSON behind every data/… address
search.py     what is turned around for searching: tokens, words, prefixes
app.py        those addresses over HTTP, with the page; guard.py decides who may ask
live.py       what needs the model: a prompt, read
export.py     the same addresses as files
"""
