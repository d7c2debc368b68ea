"""`acil doctor`: what is installed here, on which machine, and how fast it is."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acil import __version__
from acil.cli.shared import AsJson, echo_json, table, tell
from acil.extras import extras, install
from acil.machine import cpu_name, memory, thread_variables, usable_cores, version

if TYPE_CHECKING:
    import torch

PACKAGES = (
    *("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pillow", "matplotlib", "pooch"),
    *("typer", "rich", "threadpoolctl"),
)
#: Width of the matrices to measure with: large enough for the device to reach its usual speed.
SIZES = {"cpu": 2048, "cuda": 8192}
ROWS = 1024
DTYPES = ("float64", "float32")
#: Seconds that all measurements share, beside one run of each to warm up.
BUDGET = 1.5
#: Recommend "mixed" only if float32 is at least this many times as fast.
WORTH_MIXING = 3.0


def doctor(
    as_json: AsJson = False,
    speed: Annotated[bool, typer.Option(help="Measure speed, which takes some 3 seconds.")] = True,
) -> None:
    """Show versions, devices, extras and speed of this machine."""
    from rich.console import Console

    with Console(stderr=True).status("Examining this machine"):
        report = examine(speed)
    if as_json:
        echo_json(report)
    else:
        _show(report)
    if report["problem"]:
        tell(f"error: {report['problem']}")
        raise typer.Exit(1)


def examine(speed: bool = True) -> dict[str, Any]:
    """Collect everything that `acil doctor` reports, as JSON values."""
    data = os.environ.get("ACIL_DATA")
    report: dict[str, Any] = {
        "acil": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "extras": {},
        "cores": {"logical": os.cpu_count(), "usable": usable_cores()},
        "memory": memory(),
        "data": {"ACIL_DATA": data, "exists": data is not None and Path(data).is_dir()},
        "devices": [],
        "threads": {},
        "speed": None,
        "problem": None,
    }
    for name, packages in extras().items():
        missing = [package for package in packages if version(package) is None]
        report["extras"][name] = {"missing": missing, "install": install(name) if missing else None}
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that torch needs is missing
        return report | {"problem": f"torch cannot be imported: {error}"}
    report |= {"devices": _devices(torch), "threads": _threads(torch)}
    if speed:
        report["speed"] = measure([device["name"] for device in report["devices"]])
    return report


def _devices(torch: Any) -> list[dict[str, Any]]:
    devices = [{"name": "cpu", "model": cpu_name(), "memory": memory()["total"], "float64": True}]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        devices.append(
            {"name": f"cuda:{index}", "model": card.name, "memory": card.total_memory, "float64": True}
        )
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "model": "Apple GPU", "memory": None, "float64": False})
    return devices


def _threads(torch: Any) -> dict[str, Any]:
    import scipy.linalg  # noqa: F401 - loads the BLAS whose threads are counted
    import threadpoolctl  # type: ignore[import-untyped]

    pools = {}
    for pool in threadpoolctl.threadpool_info():
        library = "/".join(Path(pool["filepath"]).parts[-2:])
        pools[f"{library}, version {pool['version'] or 'unknown'}"] = pool["num_threads"]
    return {"torch": torch.get_num_threads(), "pools": pools, "settings": thread_variables()}


def measure(devices: list[str]) -> dict[str, Any]:
    """Measure the two operations that take most of the time, on CPU and GPUs."""
    import torch

    names = [name for name in devices if torch.device(name).type in SIZES]
    seconds = BUDGET / (len(names) * 2 * len(DTYPES))
    results: list[dict[str, Any]] = []
    for name in names:
        try:
            speeds = {dtype: _measure(torch.device(name), dtype, seconds) for dtype in DTYPES}
            results.append({"device": name, **speeds})
        except RuntimeError as error:
            # One full or broken device must not hide the others.
            results.append({"device": name, "error": str(error).splitlines()[0]})
    return {"results": results, "recommendation": recommend(results)}


def recommend(results: list[dict[str, Any]]) -> str:
    """Say which dtype to use on the device that ``device="auto"`` takes, from what was measured."""
    usable = [result for result in results if "error" not in result]
    if not usable:
        return "Nothing could be measured."
    chosen = next((result for result in usable if result["device"].startswith("cuda")), usable[0])
    gain = chosen["float64"]["head_seconds"] / chosen["float32"]["head_seconds"]
    if gain < WORTH_MIXING:
        return f'Keep dtype="float64" on {chosen["device"]}: float32 is only {gain:.1f} times as fast.'
    return (
        f'float32 is {gain:.1f} times as fast as float64 on {chosen["device"]}: consider dtype="mixed", '
        "which multiplies in float32 and sums in float64."
    )


def head_seconds(syrk: float, cholesky: float) -> float:
    """Estimate the time of a CIFAR-100 head from speeds in floating-point operations a second."""
    n, d, c, K = 50_000, 8192, 100, 25
    # One triangle of Σ XᵀX takes n d² operations, a factor d³/3, the two substitutions 2 d² a class.
    # The number of classes grows evenly from c/2 to c: 3c/4 on average.
    substitutions = (K + 1) * 2 * d**2 * (3 * c / 4)
    return (n * d**2 + substitutions) / syrk + (K + 1) * (d**3 / 3) / cholesky


def _measure(device: torch.device, dtype: str, seconds: float) -> dict[str, float]:
    import torch

    from acil.core.cholesky import cholesky_
    from acil.core.linalg import add_gram_

    d, generator = SIZES[device.type], torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, d, generator=generator).to(device, getattr(torch, dtype))
    gram = add_gram_(rows.new_zeros(d, d), rows)
    gram.diagonal().add_(float(ROWS))  # well-conditioned, in float32 too
    work = gram.clone()
    syrk = ROWS * d**2 / _fastest(lambda: add_gram_(work, rows), seconds, device)
    factorize = _fastest(
        lambda: cholesky_(work, float(ROWS)), seconds, device, prepare=lambda: work.copy_(gram)
    )
    cholesky = d**3 / 3 / factorize
    speeds = {"syrk_gflops": syrk / 1e9, "cholesky_gflops": cholesky / 1e9}
    return {**speeds, "head_seconds": head_seconds(syrk, cholesky)}


def _fastest(
    work: Callable[[], object],
    seconds: float,
    device: torch.device,
    prepare: Callable[[], object] = lambda: None,
) -> float:
    """Return the seconds of the fastest run: the one that other processes disturbed least."""
    import torch

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def run() -> float:
        prepare()
        wait()
        time.sleep(0.01)  # threads that prepared spin for a while, on cores that the work needs
        start = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - start

    run()  # loads libraries and touches memory
    end, best = time.perf_counter() + seconds, run()
    while time.perf_counter() < end:
        best = min(best, run())
    return best


def _show(report: dict[str, Any]) -> None:
    typer.echo(table(_facts(report)))
    if report["speed"] is None:
        return
    rows = [("device", "dtype", "syrk GFLOP/s", "Cholesky GFLOP/s", "CIFAR-100 head s")]
    for result in report["speed"]["results"]:
        if "error" in result:
            typer.echo(f"{result['device']} was not measured: {result['error']}")
            continue
        for dtype in DTYPES:
            syrk, cholesky, head = result[dtype].values()
            speeds = (f"{syrk:,.0f}", f"{cholesky:,.0f}", f"{head:,.1f}")
            rows.append((result["device"], dtype, *speeds))
    typer.echo("\n" + table(rows, right=(2, 3, 4)) + "\n")
    typer.echo("CIFAR-100 head: estimate for 50,000 rows of features, d = 8192, 100 classes, K = 25.")
    typer.echo(report["speed"]["recommendation"])


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [(name, report[name]) for name in ("acil", "python", "platform")]
    facts += [(name, version or "not installed") for name, version in report["packages"].items()]
    for name, extra in report["extras"].items():
        missing = f"{extra['install']} (missing: {', '.join(extra['missing'])})"
        facts.append((f"extra {name}", missing if extra["missing"] else "installed"))
    cores, memory, data, threads = (report[key] for key in ("cores", "memory", "data", "threads"))
    facts.append(("cores", f"{cores['logical']}, of which {cores['usable']:g} usable"))
    limit = f", limited to {_gib(memory['limit'])}" if memory["limit"] else ""
    facts.append(("memory", f"{_gib(memory['total'])}, {_gib(memory['available'])} available{limit}"))
    for device in report["devices"]:
        note = "float64" if device["float64"] else 'no float64: only dtype="float32"'
        facts.append((device["name"], f"{device['model']}, {_gib(device['memory'])}, {note}"))
    if threads:
        facts.append(("threads", f"{threads['torch']} (torch)"))
        facts += [("", f"{count} ({library})") for library, count in threads["pools"].items()]
        facts += list(threads["settings"].items())
    directory = data["ACIL_DATA"] or "not set"
    missing = "" if data["exists"] or not data["ACIL_DATA"] else " (no such directory)"
    return [*facts, ("ACIL_DATA", directory + missing)]


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
