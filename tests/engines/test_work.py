"""What engines tell of their work: how many requests there are, and that they get on with them."""

from __future__ import annotations

import pytest

from llmgw.engines.base import RequestCounts
from llmgw.engines.registry import ENGINES

VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 7.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {cache}
vllm:prompt_tokens_total{{engine="0",model_name="m"}} 29.0
vllm:prompt_tokens_created{{engine="0",model_name="m"}} 1.7961858734584599e+09
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}.0
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="m"}} {aborted}.0
http_requests_total{{handler="/v1/completions",method="POST",status="4xx"}} {aborted}.0
"""
LLAMA = """llamacpp:prompt_tokens_total 5
llamacpp:tokens_predicted_total {tokens}
llamacpp:n_decode_total {steps}
llamacpp:requests_processing {running}
llamacpp:requests_deferred 2
"""


def counts(engine: str) -> RequestCounts:
    found = ENGINES[engine].request_counts
    assert found is not None
    return found


def vllm(running: int = 1, tokens: int = 1736, cache: str = "9.1e-05", aborted: int = 0) -> str:
    return VLLM.format(running=running, tokens=tokens, cache=cache, aborted=aborted)


def test_running_and_waiting_requests_are_added_up() -> None:
    assert counts("vllm").count(vllm(running=3)) == 3
    text = LLAMA.format(running=1, tokens=0, steps=0)
    assert counts("llama.cpp").count(text) == 3


def test_engines_behind_one_address_are_counted_together() -> None:
    second = vllm(running=2).replace('engine="0"', 'engine="1"')
    assert counts("vllm").count(vllm(running=1) + second) == 3


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("text", ["", "process_cpu_seconds_total 11.7\n", "<html>404</html>"])
def test_other_words_tell_of_no_requests_at_all(engine: str, text: str) -> None:
    assert counts(engine).count(text) is None


@pytest.mark.parametrize(
    "later", [vllm(tokens=1737), vllm(cache="1.2e-04"), vllm(running=2)], ids=str
)
def test_a_step_of_the_engine_changes_its_mark(later: str) -> None:
    assert counts("vllm").mark(later) != counts("vllm").mark(vllm())


def test_each_batch_of_a_long_prompt_is_a_step() -> None:
    first, second = (LLAMA.format(running=1, tokens=0, steps=n) for n in (4, 5))
    assert counts("llama.cpp").mark(first) != counts("llama.cpp").mark(second)


def test_clients_that_give_up_do_not_make_a_hung_engine_look_alive() -> None:
    assert counts("vllm").mark(vllm(aborted=9)) == counts("vllm").mark(vllm())
