"""The command line: it reads arguments, calls what does the work, and prints what views return.

Nothing but typer is imported before a command runs, so that `llmgw --help` answers at once.
"""
