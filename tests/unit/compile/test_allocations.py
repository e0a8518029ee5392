"""On-chip memory of a kernel."""

from pytest_pallas.compile.machine_code import allocated_bytes

CODE = """\
$region0: #{k}
  #allocation0 [shape = 'u32[]', space=smem, size = 0x4, offset = 0x4, fixed_abs, tag = 'core']
  #allocation3 [shape = 'f32[8,128]{1,0}', space=vmem, size = 0x1000, offset = 0, scoped, tag = 'a']
  $region1: #{k} parent=0
    #allocation4 [shape = 'u8[8192]', space=vmem, size = 0x2000, offset = 0x1000, scoped, tag = 'b']
  $region2: #{k} parent=0
    #allocation5 [shape = 'u8[4096]', space=vmem, size = 0x1000, offset = 0x1000, scoped, tag = 'c']
    #allocation6_spill [shape = 'u32[1]', space=smem, size = 0x4, offset = 0x8, scoped, tag = 'd']
  $region3: #{k} parent=0
    _
"""


def test_scopes_that_share_addresses_count_once():
    assert allocated_bytes(CODE, "vmem") == 0x3000


def test_fixed_addresses_do_not_count():
    assert allocated_bytes(CODE, "smem") == 4


def test_nothing_is_zero():
    assert allocated_bytes(CODE, "cmem") == 0


def test_code_that_is_cut_tells_nothing():
    assert allocated_bytes(CODE[:300], "vmem") is None
    assert allocated_bytes("", "vmem") is None
