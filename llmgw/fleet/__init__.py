"""Many simulated nodes in one process: what a thousand agents say and do, without their cost.

Each node has a brain of its own (`core.node`), as a real agent does. What surrounds the brain is
shared by all: one connection to the log, one reader of commands, one clock, one file of records.
`llmgw up --simulate` and `llmgw agent fleet` run one.
"""
