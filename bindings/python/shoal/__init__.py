"""shoal: deep models in shallow memory. Python calls over libshoal, by ctypes.

    import shoal

    with shoal.Model("models/shoal-mini") as model:
        plan = model.plan("a red apple", vram="8MiB")
        print(plan)  # what will run, exactly
        plan.run().save("apple.png")

Sizes are bytes, or strings with a unit ("3GiB"). Failures are shoal.Error, whose status says of
what kind; wrong arguments that Python itself can see are ValueError and TypeError. Distinct objects
may be used from distinct threads; one object by one thread at a time.
"""

from ._engine import Model, Plan, PlanSummary, Progress, Report, Result
from ._engine import devices, generate, inspect, samplers
from ._library import AUTO, UNLIMITED, Error, Status, __version__
from .store import Store, StoreStats, Tensor

__all__ = ["AUTO", "UNLIMITED", "Error", "Model", "Plan", "PlanSummary", "Progress", "Report",
           "Result", "Status", "Store", "StoreStats", "Tensor", "__version__", "devices",
           "generate", "inspect", "samplers"]
