"""Rules: code that a kernel inlines."""

from __future__ import annotations

from typing import Any

from pytest_pallas.errors import MissingRuleError
from pytest_pallas.simulator.gpu.assembly import inline_assembly
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.recording import Fenced
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

#: Makes what threads wrote visible to asynchronous operations (PTX ISA 9.0, 9.7.13.4 "fence").
_PROXY_FENCE = "fence.proxy.async"


@rule("inline_mgpu", "inline_mgpu_p", threaded=True)  # the latter is that of JAX 0.11
def _inline_mgpu(eqn: Equation) -> Evaluate:
    """Fences, which ``plgpu.dynamic_scheduling_loop`` inlines; nothing else can be simulated.

    Raises:
      MissingRuleError: the code is more than fences.
    """
    instructions = inline_assembly(eqn.params)
    if instructions is None or not all(each.startswith("fence") for each in instructions):
        code = f" ({'; '.join(instructions)})" if instructions else ""
        raise MissingRuleError(
            f"the code of inline_mgpu{code} is for compilers: the simulator knows only fences"
        )
    proxies = any(each.startswith(_PROXY_FENCE) for each in instructions)

    def evaluate(thread: GpuThread) -> Any:
        if proxies:
            thread.recording.events.append(Fenced(thread.number))
        return ()

    return evaluate
