"""Times on an accelerator, read off profiles as JAX writes them."""

import jax
import jax.numpy as jnp
import pytest

from pytest_pallas.backends.hardware import BusyInterval, device_seconds, median_seconds, spans

#: Times are in picoseconds, offsets in their line.
GPU = """
planes {
  name: "/host:CPU"
  lines { name: "python" events { metadata_id: 1 offset_ps: 0 duration_ps: 900000000 } }
}
planes {
  name: "/device:GPU:0"
  lines {
    name: "Stream #13(MemcpyD2D,Compute)"
    timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 2000000 }
    events { metadata_id: 1 offset_ps: 3000000 duration_ps: 1000000 }
    events { metadata_id: 1 offset_ps: 10000000 duration_ps: 2000000 }
    events { metadata_id: 1 offset_ps: 15000000 duration_ps: 1000000 }
  }
  lines { name: "XLA Modules" events { metadata_id: 1 offset_ps: 0 duration_ps: 70000000 } }
  event_metadata { key: 1 value { id: 1 name: "kernel" } }
}
"""

TPU = """
planes {
  name: "/device:TPU:0"
  lines { name: "XLA Ops" events { metadata_id: 1 offset_ps: 0 duration_ps: 1000000 } }
  lines { name: "XLA Modules" events { metadata_id: 1 offset_ps: 0 duration_ps: 7000000 } }
  event_metadata { key: 1 value { id: 1 name: "jit_f" } }
}
"""


def profile(text):
    return jax.profiler.ProfileData.from_serialized_xspace(
        jax.profiler.ProfileData.text_proto_to_serialized_xspace(text)
    )


def test_streams_of_a_gpu():
    assert spans(profile(GPU)) == [
        BusyInterval(1000, 3000),
        BusyInterval(4000, 5000),
        BusyInterval(11000, 13000),
        BusyInterval(16000, 17000),
    ]


def test_programs_of_a_tpu():
    assert spans(profile(TPU)) == [BusyInterval(0, 7000)]


def test_a_call_is_from_its_first_kernel_to_its_last():
    busy = spans(profile(GPU))
    assert median_seconds(busy, 2) == pytest.approx((4e-6 + 6e-6) / 2)
    assert median_seconds(busy, 3) == pytest.approx(6e-6 / 3)
    assert median_seconds([], 3) is None


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is an accelerator")
def test_a_cpu_has_none():
    called = []
    assert device_seconds(lambda: called.append(1) or jnp.ones(3) + 1, calls=2) is None
    assert len(called) == 2
