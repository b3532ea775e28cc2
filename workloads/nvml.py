"""What an NVIDIA GPU says about itself: clocks, power, temperature, and why it runs slower than it could.

Through the driver's own library, which is there wherever the driver is; nothing to install. What it does not tell is
None: a container may hide the library, a virtual GPU its power.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of NVML's clock event (formerly: throttle) reasons; 0x1 says that the GPU is idle, which is no reason."""
_LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_SM, _TEMPERATURE_OF_GPU = 1, 0


@dataclass(frozen=True)
class Reading:
    """One moment. Clock in MHz, power in watts, temperature in degrees Celsius."""

    sm_clock: int | None
    power: float | None
    temperature: int | None
    reasons: tuple[str, ...]


class Gpu:
    """One GPU. `open` finds it; the methods take some hundred microseconds each."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def open(cls, uuid: str, libraries: Sequence[str] = _LIBRARIES) -> Gpu | None:
        """The GPU with this UUID (as torch tells it, with or without `GPU-`); None where NVML or it is not there."""
        for name in libraries:
            try:
                library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            return None
        handle = ctypes.c_void_p()
        named = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(named.encode(), ctypes.byref(handle)):
            return None
        return cls(library, handle)

    @property
    def power_limit(self) -> float | None:
        """Watts."""
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return None if limit is None else limit / 1e3

    @property
    def max_sm_clock(self) -> int | None:
        """MHz."""
        return self._ask("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, _SM)

    def read(self) -> Reading:
        power = self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return Reading(
            sm_clock=self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM),
            power=None if power is None else power / 1e3,
            temperature=self._ask("nvmlDeviceGetTemperature", ctypes.c_uint, _TEMPERATURE_OF_GPU),
            reasons=self._reasons(),
        )

    def _reasons(self) -> tuple[str, ...]:
        bits = None
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            bits = self._ask(function, ctypes.c_ulonglong) if bits is None else bits
        return tuple(name for bit, name in REASONS.items() if (bits or 0) & bit)

    def _ask(self, function: str, kind: Any, *args: int) -> int | None:
        value = kind()
        try:
            failed = getattr(self._library, function)(self._handle, *args, ctypes.byref(value))
        except AttributeError:  # an older driver
            return None
        return None if failed else int(value.value)
