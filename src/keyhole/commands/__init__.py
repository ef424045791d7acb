"""What each command of `keyhole` does. `cli.py` lists the commands; heavy imports wait until one of them is called."""
