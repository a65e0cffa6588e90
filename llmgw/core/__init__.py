"""The pure core: facts in, intentions out. No I/O, no clock, no randomness.

`events` and `commands` say what can be written to the log, `cluster` folds it, `placement` and
`decide` answer what should happen, and `node` is the brain of an agent.
"""
