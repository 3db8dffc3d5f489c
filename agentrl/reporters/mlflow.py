"""MLflow. A database in the run directory unless the recipe or `MLFLOW_TRACKING_URI` names a server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.reporters.tracker import Tracker, flat
from agentrl.types.errors import needs
from agentrl.types.reporter import RunStart

_UNTAKEN = re.compile(r"[^\w\-. /]")
"""Characters that MLflow refuses in names."""
_LONGEST_VALUE = 6000
_PARAMS_AT_ONCE = 100


class MLflowSettings(Section):
    """Settings of the MLflow tracker."""

    uri: str | None = Field(None, description="Default: MLFLOW_TRACKING_URI, and without it RUN/mlflow.db.")
    experiment: str | None = Field(None, description="Default: the recipe's name.")


class MLflow(Tracker):
    """Metrics by iteration, and the recipe as the run's parameters."""

    def __init__(self, settings: MLflowSettings) -> None:
        self.settings = settings
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a run sends data only to the tracker
        with needs("mlflow"):
            import alembic  # noqa: F401  (a database of its own takes both)
            import sqlalchemy  # noqa: F401
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        self._metric, self._param, self._client_at = Metric, Param, MlflowClient
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)

    def open(self, run: RunStart, id: str | None) -> str:
        folder, named = run.path.resolve(), self.settings.uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._client_at(tracking_uri=named or f"sqlite:///{folder / 'mlflow.db'}")
        if id is not None:
            self._run = id
            self._client.update_run(id, status="RUNNING")
            return id
        artifacts = None if named else (folder / "mlflow-artifacts").as_uri()
        experiment = self._experiment(self.settings.experiment or run.name, artifacts)
        tags = {"agentrl.run": run.id, "agentrl.path": str(folder), "agentrl.command": run.command}
        self._run = str(self._client.create_run(experiment, run_name=run.path.name, tags=tags).info.run_id)
        params = [self._param(_taken(key), str(value)[:_LONGEST_VALUE]) for key, value in flat(run.recipe).items()]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=params[start : start + _PARAMS_AT_ONCE])
        return self._run

    def _experiment(self, name: str, artifacts: str | None) -> str:
        if (found := self._client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=artifacts))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_taken(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, error: BaseException | None) -> None:
        status = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
        self._client.set_terminated(self._run, status)


def _taken(name: str) -> str:
    return _UNTAKEN.sub("_", name)
