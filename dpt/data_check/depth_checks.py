"""Depth maps: their unit, what was measured, and values that mean something else than depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median

from dpt.data_check.findings import Finding, Severity, plural
from dpt.data_check.measure import Depth, Extreme
from dpt.data_check.scan import Record, Scan

UNITS = {
    0.001: "millimetres",
    1.0: "metres",
    0.01: "centimetres",
    1 / 256: "KITTI's 1/256 m",
    0.0002: "TUM's 1/5000 m",
}
_TOO_NEAR = 0.02  # metres: no usual camera sees a whole picture that near
_NEAR = 0.25  # metres: an arm's length would be a strange typical depth
_MANY_BEYOND = 0.1  # of the measured pixels

Maps = list[tuple[Record, Depth]]


def check_depth(scan: Scan) -> Iterator[Finding]:
    """All of the checks of depth maps."""
    maps: Maps = [(record, record.depth) for record in scan.records if record.depth]
    if maps:
        unit = list(_check_unit(scan, maps))
        yield from unit
        yield from _check_maps(scan, maps)
        is_wrong = any(finding.severity == "error" for finding in unit)
        yield from _check_extremes(scan, maps, only_last=is_wrong)
        if not is_wrong:  # else everything is out of range
            yield from _check_range(scan, maps)


def _check_unit(scan: Scan, maps: Maps) -> Iterator[Finding]:
    """Typical depths that no camera would give, with the unit that would make them plausible."""
    measured = [depth for _, depth in maps if depth.measured]
    if not measured:
        return
    rule = scan.facts.depth
    scale = rule.scale if rule else 1.0
    typical, high = (median(depth.raw[i] for depth in measured) for i in (0, 1))
    metres = typical * scale
    max_depth = scan.facts.info.max_depth
    severity: Severity = "error"
    if max_depth is not None and metres > max_depth:
        fault = f"beyond data.max_depth={max_depth:g} m"
    elif metres < _TOO_NEAR:
        fault = "nearer than a camera can focus"
    elif metres < _NEAR:
        severity, fault = "warning", "less than an arm's length"
    else:
        return
    found = f"the typical depth is {metres:.4g} m, {fault}"
    remedy = "check the unit of the files"
    if rule is not None:
        found += f" ({typical:.4g} in the files, times data.depth_scale={scale:g})"
        remedy = "check data.depth_scale and data.max_depth"
        better = likely_scale(typical, high, max_depth=max_depth, scale=scale)
        if better is not None:
            found += f"; these look like {UNITS[better]}"
            remedy = f"set data.depth_scale={better:.6g}"
    yield Finding(
        severity=severity,
        code="depth_unit",
        split=scan.split,
        message=found,
        remedy=remedy,
        examples=tuple(record.name for record, _ in maps[:3]),
    )


def likely_scale(
    typical: float, high: float, *, max_depth: float | None, scale: float
) -> float | None:
    """The usual scale that makes depths plausible: the one that fills ``max_depth`` best.

    Args:
        typical, high: the median and the 99 % quantile of the numbers in the files.
        max_depth: metres that depths are expected to reach; None for no expectation.
        scale: the one that was tried, and failed.
    """
    limit = 100.0 if max_depth is None else max_depth
    fitting = [
        unit
        for unit in UNITS
        if abs(unit / scale - 1) > 0.01 and typical * unit >= _NEAR and high * unit <= limit
    ]
    return max(fitting, default=None)


def _check_range(scan: Scan, maps: Maps) -> Iterator[Finding]:
    """Pixels that were measured, but lie outside the range that counts as valid."""
    max_depth = scan.facts.info.max_depth
    pixels = sum(depth.measured for _, depth in maps)
    beyond = sum(depth.beyond * depth.measured for _, depth in maps) / max(pixels, 1e-9)
    if beyond > _MANY_BEYOND:
        yield _of_maps(
            scan,
            [(record, depth) for record, depth in maps if depth.beyond > _MANY_BEYOND],
            severity="warning",
            code="depth_beyond_max",
            message=f"{beyond:.0%} of measured pixels are beyond data.max_depth={max_depth:g} m",
            remedy="raise data.max_depth if they are genuine, add their value to "
            "data.invalid_depth if not",
        )
    outside = [(record, d) for record, d in maps if d.measured and not d.valid]
    if outside:
        yield _of_maps(
            scan,
            outside,
            severity="error" if 2 * len(outside) > len(maps) else "warning",
            code="depth_out_of_range",
            message=f"{len(outside)} of {plural(len(maps), 'depth map')} lie wholly outside "
            f"{scan.facts.info.min_depth:g}..{max_depth:g} m",
            remedy="check data.min_depth, data.max_depth and the files",
        )


def _check_maps(scan: Scan, maps: Maps) -> Iterator[Finding]:
    """Maps that hold nothing, one value, or too few levels."""

    def those(test: Callable[[Depth], bool]) -> Maps:
        return [(record, depth) for record, depth in maps if test(depth)]

    def grave(some: Maps) -> Severity:
        return "error" if 2 * len(some) > len(maps) else "warning"

    if empty := those(lambda d: not d.measured):
        yield _of_maps(
            scan,
            empty,
            severity=grave(empty),
            code="depth_all_invalid",
            message=f"{len(empty)} of {plural(len(maps), 'depth map')} without a measured pixel",
            remedy="remove them, or check the files",
        )
    if constant := those(lambda d: d.constant):
        yield _of_maps(
            scan,
            constant,
            severity=grave(constant),
            code="depth_constant",
            message=f"{len(constant)} of {plural(len(maps), 'depth map')} hold one depth only",
            remedy="remove them, or check the files",
        )
    if coarse := those(lambda d: d.dtype == "uint8"):
        yield _of_maps(
            scan,
            coarse,
            severity="warning",
            code="depth_8bit",
            message=f"{len(coarse)} of {plural(len(maps), 'depth map')} stored with 8 bits: "
            "255 steps at most",
            remedy="save depth as 16-bit PNG, TIFF or .npy; a picture for viewing is no ground "
            "truth",
        )


def _check_extremes(scan: Scan, maps: Maps, *, only_last: bool) -> Iterator[Finding]:
    """One number, standing apart from all others in many maps: it hardly is a depth.

    The last number that the files' type can hold is suspicious in a single map too.
    """
    found: dict[float, list[tuple[Record, Depth, Extreme]]] = defaultdict(list)
    for record, depth in maps:
        for extreme in (depth.top, depth.bottom):
            is_last = extreme is depth.top and depth.reaches_last
            if extreme and not depth.constant and (is_last or _stands_apart(extreme)):
                found[extreme.value].append((record, depth, extreme))
    most = sorted(found, key=lambda value: -len(found[value]))[:3]
    for value in most:
        places = found[value]
        count = len(places)
        is_last = any(depth.reaches_last and e is depth.top for _, depth, e in places)
        if not is_last and (only_last or count < 3 or 5 * count < len(maps)):
            continue
        share = sum(extreme.share for _, _, extreme in places) / count
        rule = scan.facts.depth
        metres = value * (rule.scale if rule else 1.0)
        max_depth = scan.facts.info.max_depth
        counts = scan.facts.info.min_depth <= metres <= (max_depth or float("inf"))
        declared = [*(rule.invalid if rule else ()), value]
        yield Finding(
            severity="warning" if counts else "note",
            code="depth_spike",
            split=scan.split,
            message=f"the value {value:g} ({metres:.4g} m) stands apart in {count} of "
            f"{plural(len(maps), 'depth map')} ({share:.2g} of their pixels)"
            + (", the largest that the files can hold" if is_last else "")
            + ("" if counts else "; it lies outside the valid range and is left out already"),
            remedy="if it means 'not measured', set data.invalid_depth="
            f"[{','.join(f'{v:g}' for v in declared)}]",
            examples=tuple(record.name for record, _, _ in places),
            indices=tuple(record.index for record, _, _ in places),
        )


def _stands_apart(extreme: Extreme) -> bool:
    return extreme.share > 0.05 or (extreme.share > 0.002 and extreme.gap > 1.25)


def _of_maps(
    scan: Scan, some: Maps, *, severity: Severity, code: str, message: str, remedy: str
) -> Finding:
    return Finding(
        severity=severity,
        code=code,
        split=scan.split,
        message=message,
        remedy=remedy,
        examples=tuple(record.name for record, _ in some),
        indices=tuple(record.index for record, _ in some),
    )
