"""Loops in machine code."""

import pytest

from pytest_pallas.compile.machine_code import find_loops, main_loop, split_bundles

BUNDLES = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %1 = vsyncpa [#allocation4], 0 }
   0x1 LB: > { ... } /* Start region 7 :: Start region 3 */
   0x2   : > { %2 = dma.hbm_to_vmem /*
base_bounds: (4, 1)
   0 :  { this is a comment, not a bundle
*/ }
   0x3   : > { %9 = sbr.rel (!%p1) target = $region7 }
   0x4   :  {}
   0x5   :  {} /* End region 3 */
   0x6   :  { ... }
"""
CODE = """\
$region0: #{k}
  $region7: #{k} parent=0 // loop_body
    _
  $region3: #{k} parent=0 // loop_header_branch
    %9 = sbr.rel (!%p1) target = $region7
"""


def test_a_bundle_can_take_several_lines():
    bundles = split_bundles(BUNDLES)
    assert len(bundles) == 7
    assert "base_bounds" in bundles[2]


def test_a_loop_ends_where_the_region_of_its_branch_does():
    assert find_loops(split_bundles(BUNDLES), CODE) == [range(1, 6)]


def test_a_branch_ahead_is_no_loop():
    ahead = BUNDLES.replace("Start region 7", "").replace(
        "{ ... }\n", "{ ... } /* Start region 7 */\n"
    )
    assert find_loops(split_bundles(ahead), CODE) == []


def test_an_end_that_is_not_told_is_that_of_other_branches():
    more = BUNDLES + (
        "   0x7 LB: > { ... } /* Start region 8 :: Start region 5 */\n"
        "   0x8   : > { %11 = sbr.rel (!%p1) target = $region8 }\n"
        + "".join(f"   {place:#x}   :  {{}}\n" for place in range(9, 13))
    )
    code = CODE + "  $region5: #{k}\n    %11 = sbr.rel (!%p1) target = $region8\n"
    assert find_loops(split_bundles(more), code) == [range(1, 6), range(7, 11)]


def test_without_any_end_it_cannot_be_told():
    with pytest.raises(ValueError, match="0x1"):
        find_loops(split_bundles(BUNDLES.replace("End region 3", "")), CODE)


@pytest.mark.parametrize(
    ("computing", "main"),
    [
        (range(5, 7), range(4, 7)),  # the body of a pipeline is a loop
        (range(20), range(20)),  # straight code, and small loops in it
        (range(10, 12), range(10, 15)),
        ((), range(20)),
    ],
)
def test_the_main_loop_computes_most_by_itself(computing, main):
    loops = [range(20), range(3, 9), range(4, 7), range(10, 15)]
    assert main_loop(loops, computing) == main


def test_there_is_no_main_loop_without_loops():
    assert main_loop([], range(9)) is None
