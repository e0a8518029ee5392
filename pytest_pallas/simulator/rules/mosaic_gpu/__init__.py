"""Rules: the primitives of Mosaic GPU."""

from pytest_pallas.simulator.rules.mosaic_gpu import atomics as atomics
from pytest_pallas.simulator.rules.mosaic_gpu import barriers as barriers
from pytest_pallas.simulator.rules.mosaic_gpu import copies as copies
from pytest_pallas.simulator.rules.mosaic_gpu import hints as hints
from pytest_pallas.simulator.rules.mosaic_gpu import products as products
from pytest_pallas.simulator.rules.mosaic_gpu import remote_stores as remote_stores
from pytest_pallas.simulator.rules.mosaic_gpu import semaphores as semaphores
