"""On-policy distillation: a student plays the agent's episodes, taught by an earlier evert run.

python examples/distillation.py
"""

import asyncio

from tinker_cookbook.distillation import train_on_policy
from tinker_cookbook.distillation.datasets import DistillationDatasetConfig, TeacherConfig

import evert

MODEL, RENDERER = "evert-tiny", "qwen3_instruct"


async def agent(client, task):
    """Tell the model which number to be; return 1.0 if it says that it is, else 0.0."""
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": f"Let's play a game. Say you are {task}."}]
    )
    return float(completion.choices[0].message.content in (f"I am {task}.", f"I'm {task}."))


async def unrewarded(client, task):
    """Run the same agent without a reward, so that the student learns only from the teacher."""
    await agent(client, task)
    return 0.0


def distil(student_steps=8, teacher_steps=12):
    """Train a teacher (in ``teacher_run``), then its student (in ``student_run``)."""
    sizes = {"batch_size": 16, "group_size": 8, "max_tokens": 16, "learning_rate": 1e-3}
    teacher = evert.train(agent, range(200), steps=teacher_steps, log_path="teacher_run", **sizes)
    agents = evert.AgentDatasetBuilder(
        agent=unrewarded, train_tasks=range(200), model_name=MODEL, renderer_name=RENDERER
    )
    weights = teacher.checkpoints()[-1]["sampler_path"]
    distilled = DistillationDatasetConfig(
        dataset_builder=agents,
        teacher_config=TeacherConfig(base_model=MODEL, load_checkpoint_path=weights),
        groups_per_batch=8,
    )
    config = train_on_policy.Config(
        recipe_name="distilled",
        model_name=MODEL,
        renderer_name=RENDERER,
        dataset_configs=[distilled],
        learning_rate=1e-3,
        max_tokens=16,
        max_steps=student_steps,
        eval_every=0,
        log_path="student_run",
    )
    with evert.embedded_engine("teacher_run/checkpoints", threads=1):
        asyncio.run(train_on_policy.main(config))


if __name__ == "__main__":
    distil()
