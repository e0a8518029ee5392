"""What must be said about each of ``wrong_kernels``: by which check, in what words."""

from __future__ import annotations

from dataclasses import dataclass

BACKEND = "tpu-sim"


@dataclass(frozen=True)
class Catch:
    """A kernel that is caught.

    Attributes:
      kernel: name of its spec.
      words: regular expressions that the message must match.
      check: name of the check.
    """

    kernel: str
    words: tuple[str, ...]
    check: str = "forward"


CATCHES = (
    Catch("not_cleared", (r"all NaN \(read before they were written", r"written by .*program")),
    Catch(
        "bfloat16_sum",
        (
            r"must be exactly equal",
            r"written by \d+ programs \(0, 0, 0\.\.\d+\)",
            "values=integers",
            "any order of summation is exact in float32",
            "a narrow accumulator",
        ),
    ),
    Catch(
        "bfloat16_sum_of_normals",
        (
            r"error +rms [\d.]+ ulps .* [\d.]+ times the baseline's",
            "many small errors rather than a few large ones",
            r"an accumulator that is rounded to bfloat16 at every step",
        ),
    ),
    Catch(
        "last_block_dropped",
        (r"indices >= 8 of axis 0 \(rows\)", r"no program of \w+ .* writes its block \(1, 0\)"),
    ),
    Catch("padding_added", ("NaN where the oracle is finite",)),
    Catch(
        "sees_one_key_too_many",
        (r"[\d.e+]+ times the baseline's", r"written by program \(\d\)"),
    ),
    Catch("wrong_scale", (r"[\d.e+]+ times the baseline's", r"written by program \(\d\)")),
    Catch("wrong_base", (r"[\d.e+]+ times the baseline's", r"written by program \(\d\)")),
    Catch("half_gradient", (r"0\.5 times the oracle", r"gradient by arguments"), "gradient"),
    Catch(
        "mutates_input",
        (r"contracts\.py:\d+", r"writes to the ref of its operand 0", "input_output_aliases"),
        "immutability",
    ),
    Catch("falls_back", (r"falls_back has no Pallas kernel", r"compare jnp with jnp")),
    Catch("any_order", (r"run \d compared with run 1", "ulp"), "determinism"),
    # How a race is told is tested apart, because it depends on the version of JAX.
    Catch("read_before_wait", (r"\bread of|all NaN \(read before they were written",)),
    Catch(
        "shared_semaphore",
        (
            r"race on x_buffer",
            r"write of x_buffer",
            r"read of x_buffer",
        ),
    ),
    Catch("shared_semaphore_last_first", (r"race on y_buffer",)),
    Catch("wrong_dtype", (r"returned dtype float32, the reference bfloat16",)),
    Catch("int8_overflow", (r"must be exactly equal", r"wrapped around in int8\?")),
    Catch("beyond_the_end", (r"the index map of next_ref gives a block .* beyond the edge",)),
    Catch("swapped_index_map", (r"the index map of x_ref gives a block .* beyond the edge",)),
    Catch("transposed", (r"the oracle with its last two axes transposed",)),
    Catch("weak_scale", (r"\[1\]: weakly typed float32\[\], the reference float32",), "dtype"),
    Catch(
        "shorter_when_eager",
        (r"jit on .* \(without jax\.jit\) is wrong", r"index \d+ of axis 0 \(rows\), the last"),
        "jit",
    ),
    Catch("calls_the_host", (r"export on \S+", "callback"), "export"),
    Catch(
        "default_block_drops_tail",
        (r"blocks on .* \(default tuning .*\) is wrong",),
        "blocks",
    ),
    Catch("fades_by_row", (r"\(shard_map on 2 devices; .*\) is wrong",), "sharding"),
    Catch(
        "greatest_of_all",
        (r"with the largest finite number .* in elements beyond the edges of arrays",),
        "padding",
    ),
    Catch(
        "positives_of_all",
        (r"with the largest finite number .* in elements beyond the edges of arrays",),
        "padding",
    ),
    Catch("times_zero", (r"with NaN in the ignored elements of the arguments",), "padding"),
    Catch(
        "too_loose",
        (
            r"the output, scaled by 1\.1: accepted in all \d examples .* element by 10\.0% of",
            r"Tolerance\(rtol=0\.5, atol=0\.5\)",
            r"Leave out the tolerance",
        ),
        "oracle-strength",
    ),
    Catch(
        "left_over_activation",
        (r"linearity on .* \(linear in argument 0: f\(-2\*\*-8 x\) compared with -2\*\*-8 f\(x\)",),
        "linearity",
    ),
    Catch(
        "last_key_forgotten",
        (r"\(permuted along axis 0 of argument 1, axis 0 of argument 2: compared with the",),
        "permutation",
    ),
    Catch("mean_of_padded", (r"relation on .* \(row twice: ",), "relation"),
    Catch(
        "drops_the_tail",
        (
            r"raises\[0\]: the kernel returned float32\[8, 128\], and must raise ValueError",
            r"called with float32\[8, ?200\]",
        ),
        "raises",
    ),
    Catch(
        "wrong_twin",
        (
            r"one of two differs from the oracle: last_block_dropped by NaN .*; \S+ equals it",
            r"block +no program of body .* writes its block \(1, 0\)",
            r"source +\S+accumulation\.py:\d+",
        ),
        "cross",
    ),
    Catch(
        "never_signalled",
        (
            r"deadlock: every core is blocked",
            r"blocked on semaphore `semaphore`: needs 2, has 1",
        ),
    ),
)

#: Right ones: every check of them must pass.
CONTROLS = ("right", "signalled")

#: Right wherever there is no hardware; caught by the proof that a kernel is in the executable.
ONLY_ON_HARDWARE = ("hard_coded_interpret",)
