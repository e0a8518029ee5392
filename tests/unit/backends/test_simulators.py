"""The backend ``tpu-sim``: what it runs, what it hands on, and how it ends what does not end."""

import re
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plmgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from pallas_test_support import sample_kernels as kernels
from pallas_test_support.unknown_primitive import unknown

from pallas_sim.errors import BoundsError, MissingRuleError, OptionError, SimulationLimitError
from pytest_pallas import CapacityError, DmaError, NoPallasCallError, RaceError
from pytest_pallas.backends.protocol import Call, Fill, Outcome, RunSettings, Schedule
from pytest_pallas.backends.registry import FAMILIES, parse, select
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.mutate import mutants_of
from pytest_pallas.record import Note

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
KNOWN = {family.name: family for family in FAMILIES}


def backend(word="tpu-sim"):
    return parse(word, KNOWN)[0]


def completed():
    """The simulator that ``auto`` chooses."""
    families = {name: each for name, each in KNOWN.items() if each.kind != "hardware"}
    return next(b for b in select(["auto"], families).backends if b.kind == "simulating")


class Noting:
    """An ``Observer`` that keeps what it is told."""

    def __init__(self):
        self.told = []

    def traced(self, call, jaxpr, kernels, *, simulated=False):
        how = "simulated" if simulated else "traced"
        self.told.append((how, jaxpr is not None, [kernel.name for kernel in kernels]))

    def ended(self, call):
        self.told.append("ended")


@pytest.mark.parametrize("word", ["tpu-sim", "tpu-sim:v5e", "gpu-sim", "gpu-sim:b200"])
def test_runs_a_kernel(word):
    outcome = backend(word).run(Call(function=kernels.add_one, args=(X,)))
    assert outcome.error is None
    np.testing.assert_array_equal(outcome.values, X + 1)
    np.testing.assert_array_equal(outcome.inputs[0], X)
    assert [kernel.name for kernel in outcome.kernels] == ["body"]
    assert outcome.notes == ()


@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_kernel_sees_the_target(target):
    seen = []

    def function(x):
        seen.append(str(pltpu.get_tpu_info().chip_version.value))
        return kernels.add_one(x)

    outcome = backend(f"tpu-sim:{target}").run(Call(function=function, args=(X,)))
    assert outcome.error is None
    assert target.removeprefix("v").removeprefix("tpu") in seen[0]


def test_interpret_is_overruled():
    call = Call(function=kernels.add_one_by_rows, args=(X,), options={"interpret": True})
    outcome = backend().run(call)
    assert outcome.error is None
    np.testing.assert_array_equal(outcome.values, X + 1)


def test_nothing_is_compiled():
    def function(x):
        return kernels.add_one(jnp.sin(x)) * 2

    with jax.log_compiles(True):
        import logging

        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logging.getLogger("jax").addHandler(handler)
        try:
            outcome = backend().run(Call(function=function, args=(np.ones((7, 127), np.float32),)))
        finally:
            logging.getLogger("jax").removeHandler(handler)
    assert outcome.error is None
    assert not [each for each in records if "Compiling" in each.getMessage()]


class TestGpu:
    """The same machinery for GPU targets."""

    @staticmethod
    def summed(x):
        """All rows of blocks into one: a loop over the grid on a TPU, a race on a GPU."""

        def body(x_ref, o_ref):
            @pl.when(pl.program_id(0) == 0)
            def _():
                o_ref[...] = jnp.zeros_like(o_ref)

            o_ref[...] += x_ref[...]

        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
            grid=(x.shape[0] // 8,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        )(x)

    def test_a_race_is_an_error_where_it_is_asked_for(self):
        call = Call(function=self.summed, args=(np.ones((32, 128), np.float32),))
        assert backend("tpu-sim").run(call).error is None
        outcome = backend("gpu-sim").run(call)
        assert isinstance(outcome.error, RaceError)
        assert "a TPU would allow it" in str(outcome.error)
        unasked = backend("gpu-sim").run(
            Call(function=call.function, args=call.args, settings=RunSettings(races=False))
        )
        np.testing.assert_array_equal(unasked.unwrap(), np.full((8, 128), 4))
        assert [each.kind for each in unasked.findings][:1] == ["race"]

    def test_a_schedule_is_another_order_of_programs(self):
        def body(_zero, o_ref, count_ref):
            o_ref[...] = jnp.full((1,), plgpu.atomic_add(count_ref, (0,), 1))

        def order():
            one = pl.BlockSpec((1,), lambda i: (0,))
            return pl.pallas_call(
                body,
                out_shape=[jax.ShapeDtypeStruct((n,), jnp.int32) for n in (8, 1)],
                grid=(8,),
                in_specs=[one],
                out_specs=[pl.BlockSpec((1,), lambda i: (i,)), one],
                input_output_aliases={0: 1},
            )(jnp.zeros(1, jnp.int32))[0]

        first, other = (
            backend("gpu-sim").run(Call(function=order, schedule=Schedule(seed=seed))).values
            for seed in (0, 1)
        )
        assert first.tolist() == list(range(8)) == sorted(other.tolist())
        assert other.tolist() != first.tolist()

    def test_memory_is_filled(self):
        def body(x_ref, o_ref):
            o_ref[:4] = x_ref[:4]

        call = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))
        outcome = backend("gpu-sim").run(Call(function=call, args=(X,), fill=Fill("zero")))
        assert (outcome.unwrap()[4:] == 0).all()

    def test_it_answers_what_makes_sense_there(self):
        gpu = backend("gpu-sim")
        assert gpu.probes == ("outputs", "loads")
        told = gpu.run(Call(function=kernels.add_one, args=(X,), probe="outputs")).probe_results
        np.testing.assert_array_equal(told[0][1][0], X + 1)

    def test_kernels_see_the_target(self):
        seen = []

        def function(x):
            device = jax.sharding.get_abstract_mesh().abstract_device
            seen.append((device.platform, device.device_kind, jax.devices()[0].core_count))
            return kernels.add_one(x)

        assert backend("gpu-sim:b200").run(Call(function=function, args=(X,))).error is None
        assert seen[0] == ("gpu", "NVIDIA B200", 148)

    def test_what_is_not_simulated_is_interpreted_where_auto_chose(self):
        families = {name: each for name, each in KNOWN.items() if each.kind != "hardware"}
        chosen = {each.name: each for each in select(["auto"], families).backends}
        call = Call(function=lambda x: unknown(kernels.add_one(x)), args=(X,))
        outcome = chosen["gpu-sim"].run(call)
        assert (
            Note("run on gpu-interpret, because the simulator does not support it yet", "run")
            in outcome.notes
        )
        assert isinstance(backend("gpu-sim").run(call).error, MissingRuleError)


class TestRunsThatAreKept:
    def test_the_same_call_is_run_once(self):
        simulator = tpu_sim()
        call = Call(function=kernels.add_one, args=(X,))
        first, again = simulator.run(call), simulator.run(call)
        assert again.values is first.values
        assert again.seconds == 0.0 < first.seconds

    @pytest.mark.parametrize(
        "change",
        [
            {"args": (X + 1,)},
            {"args": (X.astype(np.int32),)},
            {"fill": Fill("high")},
            {"probe": "separate"},
            {"settings": RunSettings(devices=2)},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_another_call_is_run(self, change):
        simulator = tpu_sim()
        first = simulator.run(Call(function=kernels.add_one, args=(X,)))
        other = simulator.run(Call(**{"function": kernels.add_one, "args": (X,), **change}))
        assert other.values is not first.values

    def test_a_function_that_is_not_jitted_is_called_each_time(self):
        count = iter(range(10))

        def function(x):
            return kernels.add_one(x) + next(count)

        simulator = tpu_sim()
        call = Call(function=function, args=(X,), settings=RunSettings(jit=False))
        np.testing.assert_array_equal(simulator.run(call).values, X + 1)
        np.testing.assert_array_equal(simulator.run(call).values, X + 2)

    def test_what_a_call_asks_for_makes_no_other_run(self):
        """A kept run serves calls that ask for less of what was found, and not for more."""
        simulator = tpu_sim()

        def ran(**asked):
            settings = RunSettings(**asked)
            call = Call(function=kernels.read_before_wait, args=(X,), settings=settings)
            outcome = simulator.run(call)
            return type(outcome.error), outcome.seconds > 0

        nothing = type(None)
        assert ran(races=False, dma=False) == (nothing, True)
        assert ran(races=False, dma=False) == (nothing, False)
        assert ran() == (RaceError, True)
        assert ran() == (RaceError, False)
        assert ran(races=False) == (nothing, False)
        assert ran(races=False, dma=False) == (nothing, False)

    def test_errors_are_not_kept(self):
        def function(x):
            raise ValueError(next(count))

        count = iter("ab")
        simulator = tpu_sim()
        call = Call(function=function, args=(X,))
        assert [str(simulator.run(call).error) for _ in "ab"] == ["a", "b"]

    def test_nobody_can_change_a_kept_run(self):
        outcome = tpu_sim().run(Call(function=lambda x: (kernels.add_one(x), x), args=(X.copy(),)))
        for value in outcome.values:
            with pytest.raises(ValueError, match="read-only"):
                value[0, 0] = 7

    def test_what_is_timed_is_run(self):
        simulator = tpu_sim()
        call = Call(function=kernels.add_one, args=(X,))
        first = simulator.run(call)
        assert simulator.run_anew(call).values is not first.values

    def test_observers_are_told_of_runs_that_are_kept(self):
        simulator, noting = tpu_sim(), Noting()
        simulator.run(Call(function=kernels.add_one, args=(X,)))
        simulator.run(
            Call(function=kernels.add_one, args=(X,), settings=RunSettings(observer=noting))
        )
        assert noting.told == [("simulated", True, ["body"]), "ended"]


def copy_of_unknown(x):
    return unknown(kernels.copy_by_dma(x))


class TestWhatIsNotSimulatedYet:
    @pytest.mark.parametrize("jit", [True, False])
    def test_auto_hands_it_to_the_interpreter_and_says_so(self, jit):
        outcome = completed().run(
            Call(function=copy_of_unknown, args=(X,), settings=RunSettings(jit=jit))
        )
        assert outcome.error is None
        np.testing.assert_array_equal(outcome.values, X)
        assert (
            Note("run on tpu-interpret, because the simulator does not support it yet", "run")
            in outcome.notes
        )

    def test_the_interpreter_finds_what_it_finds(self):
        def function(x):
            return unknown(kernels.wait_for_nobody(x))

        outcome = completed().run(
            Call(function=function, args=(X,), settings=RunSettings(timeout=3))
        )
        assert type(outcome.error).__name__ == "DeadlockError"

    def test_what_nothing_runs_says_what_the_simulator_lacks(self, monkeypatch):
        def refuses(_backend, _call):
            return Outcome(error=ValueError("interpret mode does not support it"))

        simulator = completed()
        monkeypatch.setattr(type(simulator.otherwise), "run", refuses)
        outcome = simulator.run(Call(function=copy_of_unknown, args=(X,)))
        assert isinstance(outcome.error, MissingRuleError)
        text = (
            "tpu-interpret does not run it, either: ValueError: interpret mode does not support it"
        )
        assert Note(text, "run") in outcome.notes

    @pytest.mark.parametrize("function", [kernels.add_one, kernels.copy_by_dma])
    def test_what_can_be_simulated_has_no_note(self, function):
        for simulator in (completed(), backend()):
            outcome = simulator.run(Call(function=function, args=(X,)))
            assert outcome.error is None
            assert outcome.notes == ()

    @pytest.mark.parametrize("jit", [True, False])
    def test_by_name_a_race_and_a_missing_wait_are_errors(self, jit):
        def function(x, waits):
            def body(x_ref, o_ref, buffer, semaphore):
                copy = pltpu.make_async_copy(x_ref, buffer, semaphore)
                copy.start()
                if waits:
                    o_ref[...] = buffer[...]
                    copy.wait()

            scratch = (pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA)
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return pl.pallas_call(body, out_shape=shape, scratch_shapes=scratch)(x)

        for waits, error in ((True, RaceError), (False, DmaError)):
            call = Call(
                function=function,
                args=(X,),
                options={"waits": waits},
                settings=RunSettings(jit=jit),
            )
            assert isinstance(backend().run(call).error, error)

    def test_by_name_it_is_an_error_with_the_line(self):
        error = backend().run(Call(function=copy_of_unknown, args=(X,))).error
        assert isinstance(error, MissingRuleError)
        assert "has no rule for the primitive 'unknown'" in str(error)
        assert "unknown_primitive.py:" in str(error)

    def test_observers_hear_of_the_interpreter_only(self):
        noting = Noting()
        completed().run(
            Call(function=copy_of_unknown, args=(X,), settings=RunSettings(observer=noting))
        )
        assert [each for each in noting.told if each != "ended"] == [("traced", True, ["body"])]

    def test_lacks_names_the_missing_rule(self):
        simulator = backend()
        assert simulator.lacks(Call(function=kernels.copy_by_dma, args=(X,))) is None
        why = simulator.lacks(Call(function=copy_of_unknown, args=(X,)))
        assert why.startswith("the simulator has no rule for the primitive 'unknown', at ")

    def test_looking_for_it_ends(self):
        def function(x):
            while True:
                pass

        with pytest.raises(SimulationLimitError, match=r"after 0\.2 s"):
            backend().lacks(Call(function=function, args=(X,), settings=RunSettings(timeout=0.2)))

    def test_other_errors_are_not_handed_on(self):
        outcome = completed().run(Call(function=kernels.read_out_of_bounds, args=(X,)))
        assert isinstance(outcome.error, BoundsError)
        assert outcome.notes == ()


class TestWhatDoesNotEnd:
    def test_a_loop_while_tracing(self):
        def function(x):
            while True:
                time.sleep(0.01)

        started = time.monotonic()
        outcome = backend().run(
            Call(function=function, args=(X,), settings=RunSettings(timeout=0.3))
        )
        assert isinstance(outcome.error, SimulationLimitError)
        assert "still not traced and simulated after 0.3 s" in str(outcome.error)
        assert re.search(r"--pallas-timeout, at .*test_simulators\.py:\d+$", str(outcome.error))
        assert time.monotonic() - started < 15

    def test_a_loop_in_the_kernel(self):
        def body(x_ref, o_ref):
            o_ref[...] = jax.lax.while_loop(lambda x: x[0, 0] < 2, lambda x: x * 1, x_ref[...])

        def function(x):
            return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        outcome = backend().run(
            Call(function=function, args=(X,), settings=RunSettings(timeout=0.5))
        )
        assert isinstance(outcome.error, SimulationLimitError)
        assert "after 0.5 s" in str(outcome.error)
        assert re.search(r"in body at .*test_simulators\.py:\d+$", str(outcome.error))

    def test_the_next_call_runs(self):
        self.test_a_loop_while_tracing()
        simulator = backend()
        assert simulator.run(Call(function=kernels.add_one, args=(X,))).error is None
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

    def test_the_alarm_of_somebody_else_is_kept(self):
        rung = []
        before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
        signal.setitimer(signal.ITIMER_REAL, 100)
        try:
            assert backend().run(Call(function=kernels.add_one, args=(X + 3,))).error is None
            left, _ = signal.getitimer(signal.ITIMER_REAL)
            assert 50 < left <= 100
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_another_thread_has_no_alarm(self):
        found = []
        call = Call(function=kernels.add_one, args=(X + 4,))
        thread = threading.Thread(target=lambda: found.append(backend().run(call)))
        thread.start()
        thread.join()
        assert found[0].error is None


class TestWithoutJit:
    def test_a_function_may_look_at_values(self):
        def function(x):
            return kernels.add_one(x) if float(x.sum()) > 0 else kernels.add_one(-x)

        for x in (X, -X):
            outcome = backend().run(
                Call(function=function, args=(x,), settings=RunSettings(jit=False))
            )
            assert outcome.error is None
            np.testing.assert_array_equal(outcome.values, X + 1)

    def test_with_jit_it_cannot(self):
        def function(x):
            return kernels.add_one(x) if float(x.sum()) > 0 else kernels.add_one(-x)

        outcome = backend().run(Call(function=function, args=(X,)))
        assert isinstance(outcome.error, jax.errors.ConcretizationTypeError)

    @pytest.mark.parametrize("jit", [True, False])
    def test_kernels_inside_vjp_and_vmap_are_simulated(self, jit):
        @jax.custom_vjp
        def twice(x):
            return kernels.add_one(x) + kernels.add_one(x) - 2

        twice.defvjp(lambda x: (twice(x), None), lambda _, ct: (kernels.add_one(ct),))

        def function(x):
            value, pull = jax.vjp(twice, x)
            return value, pull(x), jax.vmap(kernels.add_one)(jnp.stack([x, x + 1]))

        outcome = backend().run(Call(function=function, args=(X,), settings=RunSettings(jit=jit)))
        assert outcome.error is None
        value, [gradient], batch = outcome.values
        np.testing.assert_array_equal(value, 2 * X)
        np.testing.assert_array_equal(gradient, X + 1)
        np.testing.assert_array_equal(batch, np.stack([X + 1, X + 2]))


@pytest.mark.parametrize("jit", [True, False])
def test_custom_vmap_is_simulated(jit):
    @jax.custom_batching.custom_vmap
    def twice(x):
        return kernels.add_one(x) - 1 + x

    @twice.def_vmap
    def _(size, batched, x):
        return kernels.add_one(x.reshape(-1, 128)).reshape(x.shape) * 2 - 2, True

    call = Call(
        function=lambda x: (twice(x), jax.vmap(twice)(x[None])),
        args=(X,),
        settings=RunSettings(jit=jit),
    )
    outcome = backend().run(call)
    assert outcome.error is None
    np.testing.assert_array_equal(outcome.values[0], 2 * X)
    np.testing.assert_array_equal(outcome.values[1], 2 * X[None])


@pytest.mark.parametrize("jit", [True, False])
class TestWhatIsFound:
    def test_an_index_out_of_bounds_raises(self, jit):
        call = Call(function=kernels.read_out_of_bounds, args=(X,), settings=RunSettings(jit=jit))
        outcome = backend().run(call)
        assert isinstance(outcome.error, BoundsError)
        assert "sample_kernels.py:" in str(outcome.error)

    @pytest.mark.parametrize("drops", [True, False])
    @pytest.mark.parametrize("platform", ["tpu", "gpu"])
    def test_a_load_out_of_bounds_whose_value_is_dropped(self, jit, drops, platform):
        """A TPU reads other memory of the core there; a GPU's load may be to no memory."""

        def body(x_ref, o_ref):
            i = pl.program_id(0)
            before = x_ref[i - 1]
            o_ref[i] = jnp.where(i > 0, before, 0) if drops else before

        def function(x):
            whole = pl.BlockSpec(x.shape, lambda i: (0, 0))
            specs = {"grid": (2,), "in_specs": [whole], "out_specs": whole}
            return pl.pallas_call(body, out_shape=jax.typeof(x), **specs)(x)

        simulator = backend(f"{platform}-sim")
        outcome = simulator.run(Call(function=function, args=(X,), settings=RunSettings(jit=jit)))
        notes = [note.text for note in outcome.notes]
        if drops and platform == "tpu":
            assert outcome.error is None
            assert any("read and dropped" in note for note in notes)
        else:
            assert isinstance(outcome.error, BoundsError)
            assert ("read and dropped" in str(outcome.error)) == drops
            assert notes == []

    def test_a_write_to_an_input_is_a_finding(self, jit):
        def body(x_ref, o_ref):
            x_ref[...] = x_ref[...] + 1
            o_ref[...] = x_ref[...]

        def function(x):
            return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        outcome = backend().run(Call(function=function, args=(X,), settings=RunSettings(jit=jit)))
        assert outcome.error is None
        [finding] = outcome.findings
        assert (finding.kind, finding.ref) == ("input-write", "x_ref")
        np.testing.assert_array_equal(outcome.inputs[0], X)

    def test_a_mutant_is_made(self, jit):
        traced = backend().run(
            Call(
                function=kernels.add_one, args=(X,), settings=RunSettings(observer=(kept := Kept()))
            )
        )
        assert traced.error is None
        mutant = next(m for m in mutants_of(kept.jaxpr, ()) if m.operator == "arithmetic")
        call = Call(
            function=kernels.add_one, args=(X,), settings=RunSettings(jit=jit, rewriting=mutant)
        )
        outcome = backend().run(call)
        assert outcome.error is None
        assert not np.array_equal(outcome.values, X + 1)


class Kept(Noting):
    """Keeps the program, too."""

    def traced(self, call, jaxpr, kernels, *, simulated=False):
        self.jaxpr = jaxpr


def test_memory_that_nobody_wrote_is_filled():
    def body(x_ref, o_ref):
        o_ref[:4] = x_ref[:4]

    def function(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    plain = backend().run(Call(function=function, args=(X,)))
    assert np.isnan(plain.values[4:]).all()
    filled = backend().run(Call(function=function, args=(X,), fill=Fill("zero", "output")))
    assert (filled.values[4:] == 0).all()


def test_a_function_without_a_kernel_is_an_error():
    error = backend().run(Call(function=kernels.no_kernel, args=(X,))).error
    assert isinstance(error, NoPallasCallError)
    call = Call(function=kernels.no_kernel, args=(X,), needs_kernel=False)
    assert backend().run(call).error is None


def test_an_unknown_target_is_an_error():
    with pytest.raises(OptionError, match="unknown target 'v7' of backend 'tpu-sim'; its targets:"):
        backend("tpu-sim:v7")


def test_it_can_be_timed():
    from pytest_pallas.backends.hardware import prepared, times

    call = Call(function=kernels.add_one, args=(X,))
    with prepared(tpu_sim(), call) as run:
        np.testing.assert_array_equal(run(), X + 1)
        found = times(run, 3)
    assert found.wall > 0
    assert found.device is None
    with (
        prepared(tpu_sim(), Call(function=kernels.no_kernel, args=(X,))) as run,
        pytest.raises(NoPallasCallError),
    ):
        run()


class TestMemoryOfAGpu:
    """A launch that asks for more than there is fails on a GPU, so it does here."""

    def with_scratch(self, kib):
        def body(o_ref, scratch):
            del scratch
            o_ref[...] = jnp.zeros((128,), jnp.float32)

        scratch = plmgpu.SMEM((kib, 256), jnp.float32)
        out = jax.ShapeDtypeStruct((128,), jnp.float32)
        return Call(function=plmgpu.kernel(body, out_type=out, scratch_types=[scratch]))

    def test_too_much_is_an_error_whatever_is_checked(self):
        gpu = backend("gpu-sim:h200")
        assert gpu.run(self.with_scratch(227)).error is None
        for _ in range(2):  # the second one is kept from the first
            error = gpu.run(self.with_scratch(228)).error
            assert isinstance(error, CapacityError)
            assert "233,472 bytes of shared memory, and a block of h200 can have 232,448" in str(
                error
            )
            assert [finding.kind for finding in error.findings] == ["capacity"]

    def test_registers_that_are_spilled_are_no_error(self):
        def body(o_ref, _):
            def scope(acc):
                o_ref[...] = acc[...].astype(jnp.float32)

            pl.run_scoped(scope, plmgpu.ACC((64, 512), jnp.float32))

        x = plmgpu.SMEM((8, 128), jnp.float32)
        out = jax.ShapeDtypeStruct((64, 512), jnp.float32)
        call = Call(function=plmgpu.kernel(body, out_type=out, scratch_types=[x]))
        outcome = backend("gpu-sim:h100").run(call)
        assert outcome.error is None
        assert {finding.kind for finding in outcome.findings} == {"spill"}


def test_a_mutant_that_no_compiler_takes_fails_by_its_answer():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], x_ref[...])

    def product(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = np.ones((128, 128), jnp.bfloat16)
    chip = backend("tpu-sim:v6e")
    error = chip.run(Call(function=product, args=(x,))).error
    assert "a product with sums of bfloat16" in str(error)
    settings = RunSettings(rewriting=lambda jaxpr: jaxpr)
    outcome = chip.run(Call(function=product, args=(x,), settings=settings))
    assert outcome.error is None
    assert (outcome.values == 128).all()
