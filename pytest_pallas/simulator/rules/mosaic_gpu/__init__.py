"""Rules: the primitives of Mosaic GPU."""

from pytest_pallas.simulator.rules.mosaic_gpu import atomics as atomics
from pytest_pallas.simulator.rules.mosaic_gpu import barriers as barriers
from pytest_pallas.simulator.rules.mosaic_gpu import control as control
from pytest_pallas.simulator.rules.mosaic_gpu import copies as copies
from pytest_pallas.simulator.rules.mosaic_gpu import inline as inline
from pytest_pallas.simulator.rules.mosaic_gpu import products as products
from pytest_pallas.simulator.rules.mosaic_gpu import tcgen05 as tcgen05
from pytest_pallas.simulator.rules.mosaic_gpu import tensor_memory as tensor_memory
