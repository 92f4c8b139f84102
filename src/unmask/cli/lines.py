"""What verbs print that have a line or two to say."""

from __future__ import annotations

from unmask.cli.parser import Call
from unmask.models.family import plain


def converted(call: Call) -> None:
    checkpoint = call()
    count = sum(parameter.numel() for parameter in plain(checkpoint.model).parameters())
    print(f"{call.keywords['target']}: {count:,} parameters in {call.keywords['format']} format")


def exported(call: Call) -> None:
    about = call()
    print(f"{call.keywords['onnx']}: body and head of {about['parameters']:,} parameters, stored in {about['storage']}")


def pushed(call: Call) -> None:
    print(f"{call.keywords['repository']}: {call()}")


def scored(call: Call) -> None:
    """Run the tasks, then say every score of each."""
    result = call()
    for task, scores in result["results"].items():
        for name, value in scores.items():
            metric, _, kind = name.partition(",")
            if isinstance(value, float) and not metric.endswith("_stderr"):
                error = scores.get(f"{metric}_stderr,{kind}")
                beside = f" ± {error:.4f}" if isinstance(error, float) else ""
                print(f"{task}: {metric} {value:.4f}{beside}" + (f" ({kind})" if kind != "none" else ""))
    bounds = result["likelihoods"]
    if bounds["count"]:
        print(f"{bounds['count']} likelihoods are bounds of {bounds['views']} views, ± {bounds['mean_stderr']:.3f} "
              "nats on average")  # fmt: skip
