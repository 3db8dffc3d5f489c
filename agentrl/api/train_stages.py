"""The stages of a training plan, one after another: trainer ranks for all, runners and a loop for each."""

from __future__ import annotations

from functools import partial

from agentrl.distributed.ranks import trainer_ranks
from agentrl.distributed.servers import LaunchedServers
from agentrl.distributed.worker_pool import open_runners
from agentrl.preflight.plan import TrainingPlan
from agentrl.rollouts.engines import engine_of
from agentrl.store.run_dir import RunDir
from agentrl.training.assembly import training
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.stages.offline import OfflineTraining
from agentrl.training.stages.plan import RlPlan
from agentrl.training.stages.policy import free_models
from agentrl.types.reporter import Reporter


async def train_stages(plan: TrainingPlan, run: RunDir, reporter: Reporter, joined: Ranks, *, cuda: bool) -> None:
    """Trains the stages that are left, to their end.

    Args:
        joined: rank and size of this process under torchrun.
        cuda: whether the model trains on GPUs.

    Raises:
        AgentRLError: the ranks cannot be started, too many episodes failed, or training cannot continue.
    """
    replay, recorded = plan.replay, plan.recorded
    async with trainer_ranks(plan.recipe.scale, plan.recipe.base, joined, cuda=cuda) as placed:
        ranks = placed.ranks

        async def learn() -> None:
            for stage in plan.left(run.path / "checkpoints"):
                async with open_runners(stage.parts, trains=True) as runners:
                    if not isinstance(stage, RlPlan):
                        await OfflineTraining(stage, run, reporter, runners, ranks=ranks).train()
                    else:
                        own = partial(engine_of, stage.parts, launch_servers=LaunchedServers)
                        engine_for = own if replay is None else lambda loaded: replay
                        stage_loop = training(
                            stage, run, reporter, runners, engine_for=engine_for, ranks=ranks, recorded=recorded
                        )
                        async with stage_loop as loop:
                            await loop.run()
                free_models()
            run.update_info(finished=True)

        await placed.train(learn())
