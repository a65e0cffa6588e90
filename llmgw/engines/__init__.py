"""The engines that llmgw can start, as data: one small pure module each."""
