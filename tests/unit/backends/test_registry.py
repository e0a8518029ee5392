"""What a selection of backends means."""

import ast
from pathlib import Path

import pytest

from pallas_sim.chips import targets_of
from pallas_sim.errors import OptionError
from pytest_pallas import BackendUnavailableError, backends
from pytest_pallas.backends import statuses
from pytest_pallas.backends.protocol import Call, RunSettings, label
from pytest_pallas.backends.registry import (
    FAMILIES,
    REPLACED,
    DeviceFacts,
    Family,
    compiling,
    devices_of,
    owned_elsewhere,
    parse,
    select,
    with_target,
)
from pytest_pallas.errors import DeviceLostError, IsolationError

KNOWN = {family.name: family for family in FAMILIES}


class Fake:
    kind = "hardware"
    platform = "tpu"
    target = None

    def __init__(self, name, reason):
        self.name, self.reason = name, reason

    def available(self):
        return self.reason

    def run(self, call):
        raise AssertionError


def fake(name, reason=None, kind="hardware"):
    return Family(name=name, make=lambda target: Fake(name, reason), kind=kind)


def labels(selection):
    return [label(backend) for backend in selection.backends]


HERE = ["tpu-sim", "gpu-sim", "interpret", "tpu-interpret", "gpu-interpret"]
INTERPRETERS = HERE[2:]
NO_HARDWARE = {**KNOWN, "tpu": fake("tpu", "no TPU"), "gpu": fake("gpu", "no GPU")}


def simulator_of(selection, name="tpu-sim"):
    return next(each for each in selection.backends if each.name == name)


def replaced(selection):
    return [label(each) for each in selection.backends if selection.replaced(each)]


def test_auto_takes_the_simulators_and_every_interpreter_where_there_is_no_hardware():
    selection = select(["auto"], NO_HARDWARE)
    assert labels(selection) == HERE
    assert selection.automatic == {*HERE}
    assert replaced(selection) == INTERPRETERS
    assert simulator_of(selection).otherwise.name == "tpu-interpret"
    assert simulator_of(selection, "gpu-sim").otherwise.name == "gpu-interpret"


@pytest.mark.parametrize(
    ("words", "chosen", "taken_over"),
    [
        (["interpreters"], INTERPRETERS, []),
        (["all"], HERE, []),
        (["auto", "interpreters"], HERE, []),
        (["auto", "interpret"], HERE, ["tpu-interpret", "gpu-interpret"]),
        (
            ["tpu-interpret", "auto"],
            ["tpu-interpret", *HERE[:3], HERE[4]],
            ["interpret", "gpu-interpret"],
        ),
        (["tpu-sim", "interpret"], ["tpu-sim", "interpret"], []),
        (["gpu-sim", "gpu-interpret"], ["gpu-sim", "gpu-interpret"], []),
        (["tpu-sim:v5e", "auto"], ["tpu-sim:v5e", *HERE], INTERPRETERS),
    ],
)
def test_the_simulator_takes_the_place_only_of_what_nobody_asked_for(words, chosen, taken_over):
    selection = select(words, NO_HARDWARE)
    assert labels(selection) == chosen
    assert replaced(selection) == taken_over


@pytest.mark.parametrize(
    ("words", "complete"),
    [
        (["auto"], True),
        (["all"], True),
        (["auto", "interpreters"], True),
        (["tpu-sim"], False),
        (["auto", "tpu-sim"], False),
        (["tpu-sim", "auto"], False),
        (["tpu-sim", "all"], False),
    ],
)
def test_a_simulator_that_is_named_has_nothing_to_fall_back_to(words, complete):
    selection = select(words, NO_HARDWARE)
    assert (simulator_of(selection).otherwise is not None) == complete
    assert ("tpu-sim" in selection.automatic) == complete


def test_a_target_keeps_what_a_simulator_falls_back_to():
    chosen = simulator_of(select(["auto"], NO_HARDWARE))
    made = with_target(chosen, "v5e", KNOWN)
    assert (label(made), label(made.otherwise)) == ("tpu-sim:v5e", "tpu-interpret:v5e")
    chosen = simulator_of(select(["auto"], NO_HARDWARE), "gpu-sim")
    made = with_target(chosen, "b200", KNOWN)
    assert (label(made), label(made.otherwise)) == ("gpu-sim:b200", "gpu-interpret:b200")
    assert with_target(select(["tpu-sim"], KNOWN).backends[0], "v5e", KNOWN).otherwise is None


def test_auto_takes_hardware_only_where_there_is_some():
    families = {**KNOWN, "tpu": fake("tpu"), "gpu": fake("gpu", "no GPU")}
    selection = select(["auto"], families)
    assert labels(selection) == ["tpu"]
    assert not selection.named


def test_all_says_what_it_leaves_out():
    families = {**KNOWN, "tpu": fake("tpu", "no TPU"), "gpu": fake("gpu")}
    selection = select(["all"], families)
    assert labels(selection) == [*HERE, "gpu"]
    assert selection.left_out == {"tpu": "no TPU"}


def test_names_and_targets_select_backends():
    assert [label(b) for b in parse("tpu-interpret:v5e", KNOWN)] == ["tpu-interpret:v5e"]
    assert [label(b) for b in parse("tpu-sim:all", KNOWN)] == [
        f"tpu-sim:{target}" for target in ("v4", "v5e", "v5p", "v6e", "tpu7x")
    ]
    for name in ("gpu-sim", "gpu-interpret"):
        assert [label(b) for b in parse(f"{name}:all", KNOWN)] == [
            f"{name}:{target}" for target in ("a100", "h100", "h200", "b200")
        ]


def test_repetitions_run_once():
    assert labels(select(["interpret", "interpret"], KNOWN)) == ["interpret"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tpu_interpret", "unknown backend 'tpu_interpret'. Did you mean 'tpu-interpret'?"),
        ("tpu-interpret:h100", "unknown target 'h100' of backend 'tpu-interpret'; its targets: v4"),
        ("interpret:v6e", "its targets: none"),
        ("tpu-sim:h100", "unknown target 'h100' of backend 'tpu-sim'; its targets: v4, v5e, v5p"),
        ("gpu-sim:v6e", "unknown target 'v6e' of backend 'gpu-sim'; its targets: a100, h100, h200"),
        ("tpu_sim", "unknown backend 'tpu_sim'. Did you mean 'tpu-sim'?"),
        ("interpreter", "unknown backend 'interpreter'. Did you mean 'interpreters'?"),
    ],
)
def test_unknown_names_list_the_valid_ones(word, message):
    with pytest.raises(OptionError) as caught:
        select([word], KNOWN)
    assert message in str(caught.value)


def test_a_named_backend_that_is_not_there_is_an_error():
    families = {**KNOWN, "tpu": fake("tpu", "JAX finds no TPU"), "gpu": fake("gpu", "no")}
    with pytest.raises(BackendUnavailableError) as caught:
        select(["tpu"], families)
    assert "JAX finds no TPU" in str(caught.value)
    assert f"Available here: {', '.join(HERE)}." in str(caught.value)


def making(folder):
    """The public functions of modules that make a backend for a target, read and not imported."""
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            given = [(arg.arg, ast.unparse(arg.annotation or arg)) for arg in node.args.args]
            if given == [("target", "Target | None")]:
                yield node.name.replace("_", "-")


def test_the_families_are_what_the_modules_make():
    """The list is written down, because the modules import JAX and the list must not."""
    assert sorted(making(Path(backends.__file__).parent)) == sorted(KNOWN)
    for family in FAMILIES:
        made = family.make(None)
        assert (made.name, made.kind) == (family.name, family.kind)
        assert list(family.targets) == list(targets_of(made.platform))


def test_a_simulator_replaces_interpreters_of_its_platform():
    for simulator, interpreters in REPLACED.items():
        assert KNOWN[simulator].kind == "simulating"
        for name in interpreters:
            platform = KNOWN[name].make(None).platform
            assert KNOWN[name].kind == "interpreting"
            assert platform in ("any", KNOWN[simulator].make(None).platform)


def test_the_simulated_gpu_asks_the_compiler_of_the_same_chip():
    families = {family.name: family for family in (*FAMILIES, *compiling(lambda: None))}
    for word in ("gpu-sim", "gpu-sim:b200"):
        simulator = parse(word, families)[0]
        assert simulator.compiler.chip == simulator.chip
        assert simulator.compiler.name == "gpu-compile"
    assert parse("tpu-sim", families)[0].compiler is None


def test_a_backend_with_devices_elsewhere_asks_for_them():
    told = {"tpu": DeviceFacts(kinds=("TPU v6 lite",)), "gpu": DeviceFacts(problem="no GPU")}
    families = {
        name: owned_elsewhere(family, lambda: told.__getitem__) for name, family in KNOWN.items()
    }
    assert labels(select(["auto"], families)) == ["tpu"]
    assert labels(select(["tpu:v6e"], families)) == ["tpu:v6e"]
    with pytest.raises(BackendUnavailableError, match="the TPU here is a TPU v6 lite"):
        select(["tpu:v4"], families)
    with pytest.raises(BackendUnavailableError, match="no GPU"):
        select(["gpu"], families)
    with pytest.raises(IsolationError, match="this process does not own its devices"):
        families["tpu"].make(None).run(None)


def test_hardware_is_asked_for_its_devices_and_for_why_there_are_none():
    class Present(Fake):
        def device_kinds(self):
            return ["H100", "H100"]

    present = Family(name="gpu", make=lambda target: Present("gpu", None), kind="hardware")
    families = [present, fake("tpu", "no TPU"), KNOWN["interpret"]]
    assert devices_of(families) == {
        "gpu": DeviceFacts(platform="tpu", kinds=("H100", "H100")),
        "tpu": DeviceFacts(platform="tpu", problem="no TPU"),
    }


def test_hardware_of_a_project_is_watched_and_what_it_says_is_read(monkeypatch):
    monkeypatch.setattr(statuses, "_lost", [])

    class Fails(Fake):
        def run(self, call):
            raise RuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal address")

    events = []

    class Observer:
        def traced(self, call, jaxpr, kernels):
            events.append("begin")

        def ended(self, call):
            events.append("end")

    own = Family(name="chip", make=lambda target: Fails("chip", None), kind="hardware")
    made = owned_elsewhere(own, lambda: None).make(None)
    assert (made.name, made.platform, made.reason) == ("chip", "tpu", None)
    call = Call(function=abs, settings=RunSettings(observer=Observer()))
    assert isinstance(made.run(call).error, DeviceLostError)
    assert events == ["begin", "end"]
