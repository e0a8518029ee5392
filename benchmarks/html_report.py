"""How large the HTML report of 10,000 records is, and how long a browser takes over it.

Needs chromium, chromedriver and selenium. Prints a table; asserts nothing.

    python benchmarks/html_report.py [RECORDS]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from pytest_pallas.record import Record
from pytest_pallas.report.html import page

#: Of so many records one fails.
FAILING = 40

BACKENDS = ("interpret", "tpu-sim:v5e", "tpu-sim:v6e", "gpu-interpret")
CHECKS = ("forward", "gradient", "vmap", "determinism", "immutability", "dtype", "jit", "grid")

MESSAGE = """{kernel}: {check} on {backend} is wrong
output, float32[768, 768]: wrong in 8192 of 589824 elements (1.39 %)
  worst     [245, 187]
  kernel    17.6837864
  oracle    17.6661177
  baseline  17.6661186
  error     8390 ulps of the output scale, 8.39e+03 times the baseline's (0.622); allowed 21.24
  wrong at  [192, 128] [192, 129] [192, 130] [192, 131] [192, 132] [192, 133] ...
  inputs    float32[768, 768]
  drawn     m=768 n=768 dtype=float32 values=normal seed=0"""


def records(count: int) -> list[Record]:
    """Records as of a large suite; failures have all pictures of a wrong answer, at their worst."""
    rng = random.Random(0)
    found: list[Record] = []
    for number in range(count):
        kernel = f"kernel_{number // (len(BACKENDS) * len(CHECKS)):04}"
        family = f"family_{number // 640}"
        backend = BACKENDS[number // len(CHECKS) % len(BACKENDS)]
        check = CHECKS[number % len(CHECKS)]
        fails = number % FAILING == 7
        found.append(
            Record(
                test=f"{family}/{kernel}.py::{kernel}-{check}[{backend}]",
                kernel=kernel, family=family, check=check, backend=backend, examples=8,
                outcome="failed" if fails else "skipped" if number % 9 == 0 else "passed",
                reason="not applicable (something)" if number % 9 == 0 else "",
                multiple=rng.random() * 3, seconds=rng.random() * 5,
                message=MESSAGE.format(kernel=kernel, check=check, backend=backend) * fails,
                replay=f"pytest '{family}/{kernel}.py::{kernel}-{check}[{backend}]'" * fails,
                pictures=pictures(rng) if fails else {},
                inputs={"shapes": ["8x128"], "signatures": 1, "tried": {"dim m": ["one", "tile"]},
                        "never": {"dim m": ["tile+1"]}},
            )
        )  # fmt: skip
    return found


def pictures(rng: random.Random) -> dict[str, object]:
    """A map without any order, which is hardest to compress."""
    return {
        "errors": {
            "output": "output", "dtype": "float32", "shape": [768, 768], "cell": [8, 8],
            "rows": ["".join(rng.choices("abcdefghijRSTU", k=96)) for _ in range(96)],
            "unit": "ulps", "measured": True, "wrong": 8192, "worst": [245, 187],
        },
        "histogram": {"kernel": [rng.randrange(9999) for _ in range(28)],
                      "baseline": [rng.randrange(9999) for _ in range(28)]},
        "programs": {"kernel": "body", "source": "", "grid": [6, 6], "block": [128, 128],
                     "wrong": [{"block": [i, i], "programs": [[i, i]], "wrong": 99}
                               for i in range(6)], "count": 6},
        "examples": [{"dims": {"m": rng.randrange(900), "n": rng.randrange(900)},
                      "error": rng.random() * 9999, "baseline": 0.5, "failed": False}
                     for _ in range(128)],
    }  # fmt: skip


def main() -> None:
    """Make the page, open it, filter and sort it."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    made = records(count)
    started = time.perf_counter()
    text = "".join(
        page(
            made,
            environment={"pytest_pallas": "benchmark", "written": "now"},
            options={"backends": BACKENDS, "seed": 0},
            families=[name.partition(":")[0] for name in BACKENDS],
        )
    )
    seconds = time.perf_counter() - started
    failed = sum(record.outcome == "failed" for record in made)
    print(f"{count:,} records, {failed:,} failures: {len(text.encode()) / 1e6:.1f} MB")
    print(f"{'made in':<24}{seconds:6.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="utf-8")
        for what, seconds in in_browser(path):
            print(f"{what:<24}{seconds:6.2f} s")


def in_browser(path: Path) -> list[tuple[str, float]]:
    """Seconds of what a reader does first."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(word)
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        started = time.perf_counter()
        browser.get(path.as_uri())
        browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
        found = [("opened, drawn in", time.perf_counter() - started)]
        for what, script in (
            ("only failures in", "document.getElementById('only-failed').click()"),
            ("one backend in", "const b = document.getElementById('backend'); b.value = '1';"
             "b.dispatchEvent(new Event('change'))"),
            ("sorted in", "document.querySelector('#matrix thead button').click()"),
            ("all failures opened in", "document.getElementById('open-failed').click()"),
        ):  # fmt: skip
            started = time.perf_counter()
            browser.execute_async_script(
                f"{script}; requestAnimationFrame(() => setTimeout(arguments[0]))"
            )
            found.append((what, time.perf_counter() - started))
        return found
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
