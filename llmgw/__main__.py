"""`python -m llmgw` is `llmgw`: how llmgw starts its own parts with the same interpreter."""

from llmgw.cli.main import run

if __name__ == "__main__":
    run()
