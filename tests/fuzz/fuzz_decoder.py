"""Any bytes, in any chunks: the decoder neither raises nor takes long, and chunks change nothing.

    python tests/fuzz/fuzz_decoder.py -max_total_time=60 [corpus directory]

Needs atheris (a development dependency of its own; it has no wheel for every platform).
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

SECONDS = 2.0
"""For one input; the largest that libFuzzer makes by itself is 4 KiB, a thousandth of a second's work."""


def one_input(data: bytes) -> None:
    """The first byte says how the rest is cut."""
    from allranks.checks import judge
    from allranks.inputs.unwrap import unwrapped
    from allranks.ledger import Ledger
    from allranks.plan import Plan

    begun = time.process_time()
    size, stream = 1 + (data[0] if data else 0), data[1:]
    results = []
    for chunks in ([stream], [stream[at : at + size] for at in range(0, len(stream), size)]):
        ledger = Ledger(Plan.of_world(4))
        reader = ledger.source("log")
        for chunk in unwrapped(chunks):
            reader.feed(chunk)
        reader.close()
        results.append(repr(judge(ledger.plan, ledger)))
    assert results[0] == results[1], "chunks change what is concluded"
    took = time.process_time() - begun
    assert took < SECONDS, f"{took:.1f} s for {len(data)} bytes"


def main() -> None:
    import atheris

    with atheris.instrument_imports():
        import allranks.checks
        import allranks.inputs.unwrap  # noqa: F401
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
