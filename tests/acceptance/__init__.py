"""llmgw as its users meet it: whole programs, real engines, and what the log tells afterwards."""
