"""The Tinker Cookbook's recipes: their command lines, and what a recipe lacks if it cannot run.

    RECIPES    every command line, as typed after ``python -m tinker_cookbook.recipes.``

In the settings, ``{log}`` is a new folder, ``{data}`` a folder with the files written by
``local_data.write_files``, and ``{saved}`` the last checkpoint that the previous recipe left in
``{log}``.
"""

from dataclasses import dataclass, field

RL = "groups_per_batch=2 group_size=2 max_tokens=4 max_steps=1 log_path={log}"
GAME = "batch_size=2 group_size=2 max_tokens=4 max_steps=1 eval_every=0 log_path={log}"
SFT = "batch_size=4 max_steps=2 log_path={log}"
LOCAL = "data_path={data}/forecasts.csv max_steps=1 log_path={log}"
MATHS = ("arithmetic", "gsm8k", "math", "polaris", "deepmath", "arithmetic max_steps_off_policy=1")
VARIES = ("env=", "dataset=", "methods=", "max_steps_off_policy=", "reverse=")
"""Settings that turn a module into a different recipe."""


@dataclass(frozen=True)
class Recipe:
    module: str
    """Relative to ``tinker_cookbook.recipes``."""
    settings: str = ""
    steps: dict[str, int] = field(default_factory=dict)
    """Optimizer steps of the last checkpoint, keyed by run folder (relative path)."""
    writes: tuple[str, ...] = ()
    """Files that it writes to its working directory. None of them may contain an error."""
    after: "Recipe | None" = None
    """A recipe that has to run first, because this one reads its output."""
    typed: str = ""
    """What the user types while it runs."""
    prints: str = ""
    """What it must print."""
    needs: str = ""
    """What it needs but lacks here; empty if it can run."""

    @property
    def name(self) -> str:
        """The module, plus the settings that distinguish this row from other rows of the module."""
        special = [s for s in self.settings.split() if s.startswith(VARIES)]
        return " ".join([self.module, *special]).replace("{data}/", "")


def trains(module: str, settings: str, steps: int = 1) -> Recipe:
    return Recipe(module, settings, {"log": steps})


RUBRIC = "tinker_cookbook/example_data/example_rubric_train.jsonl"
MADE = Recipe("rubric.generate_data", writes=(RUBRIC,))
PLAYED = trains(
    "multiplayer_rl.text_arena.train",
    "batch_size=2 num_train_datapoints=2 num_test_datapoints=2 max_tokens=4 max_steps=1 "
    "eval_every=0 log_path={log}",
)

RUNS: tuple[Recipe, ...] = (
    trains("rl_loop", "batch_size=2 group_size=8 max_tokens=20 max_steps=1 log_path={log}"),
    trains("sl_loop", SFT, 2),
    trains("rl_basic", "max_tokens=4 max_steps=1 log_path={log}"),
    trains("sl_basic", "max_steps=1 log_path={log}"),
    trains("chat_sl.train", f"dataset=no_robots {SFT}", 2),
    trains("chat_sl.train", f"dataset=tulu3 {SFT}", 2),
    trains("chat_sl.train", f"dataset={{data}}/talks.jsonl {SFT}", 2),
    Recipe(
        "chat_sl.sweep",
        "recipe=sft base.dataset={data}/talks.jsonl base.batch_size=4 training_budget_examples=8 "
        "learning_rates=[1e-4] lora_ranks=[4] sweep_dir={log}",
        {"log/learning_rate=0.0001_lora_rank=4": 2},
    ),
    *(trains("math_rl.train", f"env={env} {RL}") for env in MATHS),
    trains("multiplayer_rl.guess_number.train", GAME),
    trains("multiplayer_rl.twenty_questions.train", GAME.replace("batch_size=2", "batch_size=1")),
    PLAYED,
    Recipe(
        "multiplayer_rl.text_arena.play",
        "checkpoint_path={saved} mode=eval num_games=1",
        after=PLAYED,
        prints="/1, Draws: ",
    ),
    trains("preference.dpo.train", f"dataset=hhh {SFT}", 2),
    trains("preference.dpo.train", f"dataset=helpsteer3 {SFT}", 2),
    trains("preference.shorter.train", GAME),
    Recipe(
        "preference.rlhf.rlhf_pipeline",
        "batch_size=2 max_steps=1 rl_group_size=2 rl_max_tokens=4 eval_every=0",
        {f"runs/rlhf-qwen3_5_9b_base/{stage}": 1 for stage in ("sft", "rm", "rl")},
    ),
    trains("distillation.on_policy_distillation", f"dataset=deepmath {RL}"),
    trains("distillation.on_policy_distillation", f"dataset=tulu3 {RL}"),
    trains(
        "distillation.on_policy_multi_teacher",
        "deepmath_groups_per_batch=2 tulu3_groups_per_batch=2 group_size=2 max_tokens=4 "
        "max_steps=1 log_path={log}",
    ),
    trains("distillation.off_policy_reasoning", f"buffer_size=8 max_prompts=8 {SFT}", 2),
    Recipe(
        "prompt_distillation.create_data",
        "output_file={log}/made.jsonl",
        writes=("log/made.jsonl",),
    ),
    trains("prompt_distillation.train", f"file_path={{data}}/talks.jsonl {SFT}", 2),
    trains("sdft.train", f"dataset=sciknoweval topk=4 eval_every=0 {RL}"),
    trains("sdft.train", f"dataset=sciknoweval topk=4 reverse=True eval_every=0 {RL}"),
    trains("sdft.train", f"dataset=toolalpaca topk=4 eval_every=0 {RL}"),
    Recipe(
        "sdft.run_continual_learning",
        "methods=sft,sdft_is,sdft_topk learning_rates=1e-4 stages=1,2 topk=4 batch_size=8 "
        "max_tokens=400 data_dir={data}/data log_root={log}",
        {
            f"log/stage{stage}_{method}_lr1e-04": 1
            for stage in (1, 2)
            for method in ("sft", "sdft_is", "sdft_topk")
        },
    ),
    Recipe(
        "sdft.benchmark",
        "groups_per_batch=8 max_tokens=8 max_steps=1 sft_batch_size=8 sft_max_steps=1 "
        "data_dir={data}/data log_root={log}",
        writes=("log/benchmark_summary_science.json",),
    ),
    Recipe("decisions.demo", typed="Why was I charged?\n", prints='"billing": 0.'),
    trains("decisions.forecasting", f"batch_size=2 {LOCAL}"),
    trains(
        "forecasting.train",
        f"groups_per_batch=2 group_size=2 validation_group_size=1 max_tokens=4 {LOCAL}",
    ),
    MADE,
    Recipe(
        "rubric.train",
        RL.replace("group_size", "train_group_size") + " eval_every=0",
        {"log": 1},
        after=MADE,
    ),
    trains("rubric.prometheus_experimental", RL.replace("group_size", "train_group_size")),
    Recipe("rubric.debug_env", prints="Score"),
    trains(
        "rl_numerics_check.train",
        f"task.num_pages_min=1 task.num_pages_max=2 task.page_chars=100 {RL}",
    ),
    Recipe(
        "true_thinking_score.run_small_experiment", writes=("runs/tts-experiment/tts_results.json",)
    ),
    Recipe(
        "true_thinking_score.analyze",
        "n_problems=2 max_tokens=16 log_path={log}",
        writes=("log/tts_summary.json",),
    ),
)

NEEDED = {
    "download: recordings, and a model that hears":
        "audio.asr.rl_train audio.asr.sl_train audio.emotion.evaluate audio.emotion.prepare_data "
        "audio.emotion.rl_train audio.emotion.sl_train audio.medical_asr.train",
    "download: images, and a model that sees":
        "vlm_classifier.eval vlm_classifier.eval_sweep vlm_classifier.sweep vlm_classifier.train",
    "download: the data set is what it gets": "forecasting.data",
    "runs of Weights & Biases": "chat_sl.sweep.analyze",
    "the service: a process for each model": "chat_sl.sweep.launch_all",
    "sandbox":
        "code_rl.train distillation.on_policy_distillation_harbor_multi_turn "
        "harbor_rl.scripts.eval_harbor_rl harbor_rl.scripts.train_terminal_bench",
    "a Chroma server and Gemini's embeddings": "search_tool.offline_eval search_tool.train",
    "package verifiers": "verifiers_rl.evaluate verifiers_rl.train",
}  # fmt: skip
NEEDS = tuple(
    Recipe(module, needs=need)
    for module, need in sorted((name, need) for need, of in NEEDED.items() for name in of.split())
)

RECIPES = (*RUNS, *NEEDS)
