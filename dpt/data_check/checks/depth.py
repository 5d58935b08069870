"""Depth maps: their unit, their measured pixels, and values that are no depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median

from dpt.data_check.check import Finding, Record, Scan, Severity, check, quick_check
from dpt.data_check.measure import Spike

UNITS = {
    0.001: "millimetres",
    1.0: "metres",
    0.01: "centimetres",
    1 / 256: "KITTI's 1/256 m",
    0.0002: "TUM's 1/5000 m",
}
_TOO_NEAR = 0.02  # metres: cameras do not focus below
_NEAR = 0.25  # metres: an implausible typical depth
_MANY_BEYOND = 0.1  # of the measured pixels


@quick_check
def unit(scan: Scan) -> Iterator[Finding]:
    """Implausible typical depths, with the unit that would make them plausible."""
    measured = [depth for _, depth in scan.maps if depth.measured]
    if not measured:
        return
    rule, max_depth = scan.depth_rule, scan.dataset.info.max_depth
    scale = rule.scale if rule else 1.0
    typical, high = (median(depth.raw[i] for depth in measured) for i in (0, 1))
    metres = typical * scale
    severity: Severity = "error"
    if max_depth is not None and metres > max_depth:
        fault = f"beyond data.max_depth={max_depth:g} m"
    elif metres < _TOO_NEAR:
        fault = "nearer than a camera can focus"
    elif metres < _NEAR:
        severity, fault = "warning", f"less than {_NEAR} m"
    else:
        return
    message, remedy = f"the typical depth is {metres:.4g} m, {fault}", "check the unit of the files"
    if rule is not None:
        message += f" ({typical:.4g} in the files, times data.depth_scale={scale:g})"
        remedy = "check data.depth_scale and data.max_depth"
        better = likely_scale(typical, high, max_depth=max_depth, scale=scale)
        if better is not None:
            message += f"; these look like {UNITS[better]}"
            remedy = f"set data.depth_scale={better:.6g}"
    names = [record.name for record, _ in scan.maps[:3]]
    yield scan.finding(severity, "depth_unit", message, remedy, examples=names)


def likely_scale(
    typical: float, high: float, *, max_depth: float | None, scale: float
) -> float | None:
    """The largest scale in ``UNITS`` with plausible depths, for a median and a 99 % quantile."""
    limit = 100.0 if max_depth is None else max_depth
    plausible = [u for u in UNITS if typical * u >= _NEAR and high * u <= limit]
    return max((u for u in plausible if abs(u / scale - 1) > 0.01), default=None)


@check
def empty_maps(scan: Scan) -> Iterable[Finding]:
    empty = [(r, not depth.valid and not _unit_is_wrong(scan)) for r, depth in scan.maps]
    what = "depth maps without a measured pixel in the valid range"
    remedy = "check data.min_depth, data.max_depth and the files, or remove them"
    return scan.affected(empty, "depth_all_invalid", what, remedy)


@quick_check
def constant_and_coarse_maps(scan: Scan) -> Iterator[Finding]:
    constant = [(record, depth.constant) for record, depth in scan.maps]
    what, remedy = "depth maps with one depth only", "remove them, or check the files"
    yield from scan.affected(constant, "depth_constant", what, remedy)
    coarse = [(record, depth.dtype == "uint8") for record, depth in scan.maps]
    what = "depth maps stored with 8 bits, which is 255 levels at most"
    remedy = "save depth as 16-bit PNG, TIFF or .npy; do not train on pictures made for viewing"
    yield from scan.affected(coarse, "depth_8bit", what, remedy, "warning")


@quick_check
def spikes(scan: Scan) -> Iterator[Finding]:
    """A value apart from all others, in many maps or the largest of the files' type."""
    found: dict[float, list[tuple[Record, Spike]]] = defaultdict(list)
    for record, depth in scan.maps:
        for spike in depth.spikes:
            found[spike.value].append((record, spike))
    rule, info, total = scan.depth_rule, scan.dataset.info, len(scan.maps)
    for value, places in sorted(found.items(), key=lambda item: -len(item[1]))[:3]:
        count, is_last = len(places), any(spike.is_last for _, spike in places)
        if not is_last and (count < 3 or 5 * count < total or _unit_is_wrong(scan)):
            continue
        share = sum(spike.share for _, spike in places) / count
        metres = value * (rule.scale if rule else 1.0)
        is_valid = info.min_depth <= metres <= (info.max_depth or float("inf"))
        message = f"the value {value:g} ({metres:.4g} m) is apart from all others in {count} of "
        message += f"{total} depth maps ({share:.2g} of their pixels)"
        if is_last:
            message += ", and the largest value of the files' type"
        if not is_valid:
            message += "; it is outside the valid range and already ignored"
        invalid = ",".join(f"{v:g}" for v in (*(rule.invalid if rule else ()), value))
        remedy = f"if it means 'not measured', set data.invalid_depth=[{invalid}]"
        severity: Severity = "warning" if is_valid else "note"
        records = [record for record, _ in places]
        yield scan.finding(severity, "depth_spike", message, remedy, records)


@quick_check
def beyond_max_depth(scan: Scan) -> Iterator[Finding]:
    """Many measured pixels beyond ``max_depth``."""
    measured = sum(depth.measured for _, depth in scan.maps)
    beyond = sum(depth.beyond * depth.measured for _, depth in scan.maps) / max(measured, 1e-9)
    if beyond > _MANY_BEYOND and not _unit_is_wrong(scan):
        limit = f"data.max_depth={scan.dataset.info.max_depth:g} m"
        message = f"{beyond:.0%} of measured pixels are beyond {limit}"
        remedy = "raise it if they are correct; otherwise add their value to data.invalid_depth"
        records = [record for record, depth in scan.maps if depth.beyond > _MANY_BEYOND]
        yield scan.finding("warning", "depth_beyond_max", message, remedy, records)


def _unit_is_wrong(scan: Scan) -> bool:
    return any(finding.severity == "error" for finding in unit(scan))
