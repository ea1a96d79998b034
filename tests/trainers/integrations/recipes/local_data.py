"""Tiny local datasets in the formats that the Cookbook's recipes download.

``load_dataset`` replaces the function from ``datasets``, with the same names, columns and splits
but only a few short rows. ``write_files`` writes the files that recipes read from disk.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset

ROWS = 8
TESTED = 4
TULU_TEST_ROWS = 1024
"""Recipes set aside this many rows of the mixture for testing."""


def _sums(question: str, answer: str, wrap: str = "{}", **columns: Any) -> list[dict[str, Any]]:
    return [
        {question: f"What is {i} + 1?", answer: wrap.format(i + 1), **columns} for i in range(ROWS)
    ]


def _talk(i: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"Repeat: I am {i}."},
        {"role": "assistant", "content": f"I am {i}."},
    ]


def _told(i: int) -> dict[str, Any]:
    return {"messages": _talk(i)}


def _splits(rows: list[dict[str, Any]], *splits: str) -> DatasetDict:
    return DatasetDict({split: Dataset.from_list(rows) for split in splits})


def _each(
    row: Callable[[int], dict[str, Any]], *splits: str, count: int = ROWS
) -> Callable[[], DatasetDict]:
    """Return a function that creates the same rows in each split."""
    return lambda: _splits([row(i) for i in range(count)], *splits)


def _preferred(i: int) -> dict[str, Any]:
    question = f"\n\nHuman: Who are you? {i}\n\nAssistant:"
    return {"chosen": f"{question} I am {i}.", "rejected": f"{question} No idea."}


def _compared(i: int) -> dict[str, Any]:
    answers = {"response1": f"I am {i}.", "response2": "No.", "overall_preference": -1}
    return {"context": _talk(i)[:1], **answers}


def _reasoned(i: int) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": f"{i}?"}, {"from": "gpt", "value": "."}]}


def _chosen(i: int) -> dict[str, Any]:
    about = {"type": "mcq-4-choices", "domain": "Chemistry", "details": {"level": "L3"}}
    choices = {"label": ["A", "B"], "text": [str(i), "none"]}
    return {"question": f"Which is {i}?", "choices": choices, "answerKey": "A", **about}


def _judged(i: int) -> dict[str, Any]:
    scores = {f"orig_score{n}_description": f"as good as {n}" for n in range(1, 6)}
    task = {"orig_instruction": f"Say {i}.", "orig_reference_answer": f"{i}"}
    return {**task, "orig_criteria": "Is it said?", **scores}


def _math(*splits: str) -> Callable[[], DatasetDict]:
    rows = _sums("problem", "solution", "It is \\boxed{{{}}}", level="Level 1", type="t")
    other = [{**row, "problem": f"And {row['problem']}"} for row in rows]
    return lambda: DatasetDict(
        {split: Dataset.from_list(rows if split == "test" else other) for split in splits}
    )


DATA: dict[str, Callable[[], DatasetDict]] = {
    "openai/gsm8k": lambda: _splits(
        _sums("question", "answer", "We add. #### {}")[:4], "train", "test"
    ),
    "HuggingFaceH4/no_robots": _each(_told, "train", "test", count=128),
    "allenai/tulu-3-sft-mixture": _each(_told, "train", count=TULU_TEST_ROWS + ROWS),
    "Anthropic/hh-rlhf": _each(_preferred, "train", "test"),
    "nvidia/HelpSteer3": _each(_compared, "train", "validation"),
    "zwhe99/DeepMath-103K": lambda: _splits(_sums("question", "final_answer"), "train"),
    "HuggingFaceH4/MATH-500": _math("test"),
    "EleutherAI/hendrycks_math": _math("train", "test"),
    "POLARIS-Project/Polaris-Dataset-53K": lambda: _splits(_sums("problem", "answer"), "train"),
    "open-thoughts/OpenThoughts3-1.2M": _each(_reasoned, "train"),
    "Salesforce/wikitext": _each(
        lambda i: {"text": f"After {i} the next number is {i + 1} . " * 20}, "train"
    ),
    "hicai-zju/SciKnowEval": _each(_chosen, "test"),
    "tangqiaoyu/ToolAlpaca": lambda: _splits(_sums("instruction", "output"), "train"),
    "prometheus-eval/Feedback-Collection": _each(_judged, "train"),
}


def load_dataset(
    path: str, name: str | None = None, split: str | None = None, streaming: bool = False
) -> Dataset | DatasetDict | IterableDataset:
    """Return what ``datasets.load_dataset`` would return, from the data above.

    Raises:
        KeyError: There is no dataset of this name yet; add it above.
    """
    splits = DATA[path]()
    if split is None:
        return splits
    return splits[split].to_iterable_dataset() if streaming else splits[split]


def get_dataset_config_names(path: str) -> list[str]:
    """Return a single configuration name, whatever the dataset."""
    return ["default"]


def write_files(folder: Path) -> None:
    """Write the files that recipes read: conversations, sentences, forecasts, questions."""
    (folder / "talks.jsonl").write_text("\n".join(json.dumps(_told(i)) for i in range(ROWS)))
    examples = folder / "tinker_cookbook" / "example_data"
    examples.mkdir(parents=True)
    (examples / "multilingual.txt").write_text("Eins.\n")
    _write_forecasts(folder / "forecasts.csv")
    _write_arrow(folder / "data")


def _write_forecasts(file: Path) -> None:
    sources = [{"title": "t", "summary": "s", "ranking": 1}]
    columns = {"category": "c", "markets": '["yes it is"]', "sources": json.dumps(sources)}
    rows = [
        {
            "submission_id": f"s{i}", "event_ticker": f"e{i}", "title": f"Event {i}",
            "snapshot_time": f"2025-{month:02}-01T00:00:00Z",
            "close_time": f"2025-{month:02}-10T00:00:00Z",
            "market_outcome": json.dumps({"yes it is": i % 2}), **columns,
        }
        for i, month in enumerate([1, 2, 3, 4, 11, 11, 12, 12])  # before and after the split
    ]  # fmt: skip
    Dataset.from_list(rows).to_csv(str(file))


def _write_arrow(folder: Path) -> None:
    messages = [{"role": "system", "content": "Pick."}, {"role": "user", "content": "A or B?"}]
    tool = {"prompt": "Call t.", "golden_response": ["Action: t", "Action Input: {}"]}
    called = {**tool, "golden_answer": [{"Action": "t", "Action_Input": "{}"}]}
    answered = {"messages": messages, "output_text": "<answer>A</answer>"}
    data = {
        "science_data/train_data": [answered] * ROWS,
        "science_data/eval_data": [{"prompt": messages, "answer": "A"}] * TESTED,
        "tooluse_data/train_data": [tool] * ROWS,
        "tooluse_data/eval_data": [called] * TESTED,
    }  # fmt: skip
    for path, rows in data.items():
        Dataset.from_list(rows).save_to_disk(str(folder / path))
