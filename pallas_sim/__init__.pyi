"""The public names and where they live: the only list of them.

Type checkers read it as it is, and ``__init__.py`` to import a name when it is first used.
"""

from pallas_sim.errors import BoundsError as BoundsError
from pallas_sim.errors import DeadlockError as DeadlockError
from pallas_sim.errors import DeviceError as DeviceError
from pallas_sim.errors import KernelError as KernelError
from pallas_sim.errors import MissingRuleError as MissingRuleError
from pallas_sim.errors import OptionError as OptionError
from pallas_sim.errors import PallasError as PallasError
from pallas_sim.errors import SimulationError as SimulationError
from pallas_sim.errors import SimulationLimitError as SimulationLimitError
from pallas_sim.exploration.past import Reason as Reason
from pallas_sim.exploration.search import Exploration as Exploration
from pallas_sim.exploration.search import explore as explore
from pallas_sim.exploration.search import explore_runs as explore_runs
from pallas_sim.exploration.search import order_matters as order_matters
from pallas_sim.exploration.witness import Witness as Witness
from pallas_sim.findings import Finding as Finding
from pallas_sim.functions import deviation_of_function as deviation_of_function
from pallas_sim.functions import functions_alike as functions_alike
from pallas_sim.functions import hashed_errors as hashed_errors
from pallas_sim.inspector import LoadRecorder as LoadRecorder
from pallas_sim.inspector import MagnitudeRecorder as MagnitudeRecorder
from pallas_sim.inspector import uninitialized_load as uninitialized_load
from pallas_sim.machine import Limits as Limits
from pallas_sim.machine import Machine as Machine
from pallas_sim.machine import StepObserver as StepObserver
from pallas_sim.platforms import set_platforms as set_platforms
from pallas_sim.products import passes_of as passes_of
from pallas_sim.products import product_in_passes as product_in_passes
from pallas_sim.redundancy import SyncGroup as SyncGroup
from pallas_sim.redundancy import SynchronizationReport as SynchronizationReport
from pallas_sim.redundancy import SyncThreshold as SyncThreshold
from pallas_sim.redundancy import synchronization as synchronization
from pallas_sim.redundancy import thresholds as thresholds
from pallas_sim.registry import Equation as Equation
from pallas_sim.registry import rule as rule
from pallas_sim.rules.contractions import tensor_core_product as tensor_core_product
from pallas_sim.simulation import Simulation as Simulation
from pallas_sim.simulation import evaluate as evaluate
from pallas_sim.simulation import evaluate_equation as evaluate_equation
from pallas_sim.simulation import evaluate_with as evaluate_with
from pallas_sim.simulation import prepare as prepare
from pallas_sim.simulation import replay as replay
from pallas_sim.simulation import run_eagerly as run_eagerly
from pallas_sim.simulation import simulate as simulate
from pallas_sim.sites import SyncSite as SyncSite
from pallas_sim.timeline import Timeline as Timeline
from pallas_sim.timeline import timeline_text as timeline_text
