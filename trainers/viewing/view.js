"use strict";
/* The viewer's page. Each view is a function that converts the server's answer to DOM nodes. Text is
   always inserted as text nodes and never parsed as HTML. The URL fragment selects the view: "#run/3",
   "#episode/9". A saved page (report_page.py) contains all answers and does not need a server. */

const view = document.getElementById("view");
const trail = document.getElementById("trail");
const saved = JSON.parse((document.getElementById("saved") || { textContent: "null" }).textContent);
const home = saved ? saved.about.title : "Runs";
let colours = ["#0072b2"];
let version = "", notBefore = 0;
const chosen = new Set(), asked = { smooth: saved ? saved.about.smooth : 0.6, colour: "none", sort: "lowest mean" };

function el(name, props, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  for (const each of inside.flat(9)) if (each !== null && each !== undefined && each !== false) made.append(each);
  return made;
}
const link = (to, ...inside) => holds(...to) ? el("a", { href: "#" + to.map(encodeURIComponent).join("/") }, ...inside) : el("span", {}, ...inside);
const text = (value) => typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
const number = (value, digits = 2) => typeof value === "number" ? value.toFixed(digits).replace("-", "\u2212") : "";
const count = (value) => typeof value === "number" ? value.toLocaleString("en") : "";
const counted = (many, what) => `${count(many)} ${what}${many === 1 ? "" : "s"}`;
const list = (value) => Array.isArray(value) ? value : [];
const meanOf = (group) => group.reduce((sum, each) => sum + each.reward, 0) / (group.length || 1);
const cut = (value, most) => value.length > most ? value.slice(0, most) + "\u2026" : value;

/* The link's token is in localStorage, because a cookie would be sent to every server on this machine. */
function ask(name, query = {}) {
  const token = localStorage.getItem("evert-token");
  return fetch(`api/${name}?` + new URLSearchParams(query), { headers: { Authorization: `Bearer ${token}` } });
}
/* Return whether a view can be shown, since a saved page only includes some steps and episodes. */
const holds = (name, ...rest) => !saved || ["", "runs"].includes(name) ||
  [name, ...rest.slice(0, name === "step" ? 4 : 1)].join("/") in saved.answers;
function keepToken() {
  const given = new URLSearchParams(location.search).get("token");
  if (!given) return;
  localStorage.setItem("evert-token", given);
  history.replaceState(null, "", location.pathname + location.hash);
}

async function get(name, query = {}) {
  if (saved) {
    const answer = saved.answers[[name, ...Object.values(query)].join("/")];
    if (!answer) throw new Error("This is not included in the saved page. Use evert view to see the whole run.");
    colours = answer.colours || colours;
    return answer;
  }
  const answer = await ask(name, query);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  notBefore = Date.now() + 1000 * Number(answer.headers.get("Evert-Again"));
  version = answer.headers.get("Evert-Version");
  const found = await answer.json();
  colours = found.colours || colours;
  return found;
}

/* Make a table. On phones, each cell shows the name of its column. Columns: [name, row -> cell, is a number, heading]. */
function table(columns, rows, empty = "Nothing yet.") {
  if (!rows.length) return el("p", { className: "missing" }, empty);
  const cell = (row, [name, make, isNumber]) =>
    el("td", { className: isNumber ? "number" : "", "data-name": name }, make(row));
  return el("div", { className: "wide" }, el("table", {},
    columns.some(([name]) => name) && el("thead", {}, el("tr", {}, columns.map(([name, , isNumber, heading]) =>
      el("th", { scope: "col", className: isNumber ? "number" : "" }, heading || name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((column) => cell(row, column)))))));
}
const section = (title, ...inside) => el("section", {}, el("h2", {}, title), inside);
const about = (...inside) => el("p", { className: "about" }, inside);

// -- figures ---------------------------------------------------------------------------------------

function smoothed(values) {
  let average = 0, known = 0;
  return values.map((value) => {
    average = asked.smooth * average + (1 - asked.smooth) * value;
    known = asked.smooth * known + (1 - asked.smooth);
    return average / known;
  });
}

/* Return the limits of an axis: 0 to 1 for fractions, and including 0 for flat lines. Intervals (from
   bottom to top) can make the axis at most three times as long. */
function ends(unit, low, high, bottom = low, top = high) {
  const size = Math.max(Math.abs(low), Math.abs(high)), reach = Math.max(high - low, size);
  [low, high] = [Math.max(bottom, low - reach), Math.min(top, high + reach)];
  if (unit.startsWith("share")) [low, high] = [Math.min(low, 0), Math.max(high, 1)];
  else if (high - low <= size / 10) [low, high] = [Math.min(low, 0), Math.max(high, 0) || 0.01];
  const margin = 0.05 * (high - low);
  return [low - margin, high + margin];
}
const extremes = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/* Make a panel of lines {name, colour, steps, values, halves}. Faint lines show the raw values, bold
   lines the smoothed ones. "halves" contains half of the 95% interval of each value, and is smoothed
   as well. The legend shows the values at the cursor, or the last values. */
function panel(title, unit, lines, label = "step") {
  const box = el("div", { className: "panel" }, el("h3", {}, title), el("p", { className: "quiet" }, unit));
  const style = getComputedStyle(document.documentElement);
  const [ink, grid] = [style.getPropertyValue("--soft"), style.getPropertyValue("--line")];
  const digits = (plot, value) => typeof value === "number" ? String(Number(value.toPrecision(4))).replace("-", "\u2212") : "";
  const tables = [], series = [{ label, value: digits }], bands = [];
  const add = (line, values, more) => { tables.push([line.steps, values]); series.push({ value: digits, ...more }); };
  const drawn = lines.filter((each) => each.steps.length), intervals = [];
  for (const line of drawn) {
    const many = line.values.length >= 10, shown = many ? smoothed(line.values) : line.values;
    if (line.halves) {
      const halves = many ? smoothed(line.halves) : line.halves;
      const faint = { label: " ", stroke: "transparent", points: { show: false } };
      const sides = [1, -1].map((sign) => shown.map((value, i) => value + sign * halves[i]));
      for (const side of sides) add(line, side, faint);
      intervals.push(...sides.flat());
      bands.push({ series: [series.length - 2, series.length - 1], fill: line.colour + "2a" });
    }
    if (many) add(line, line.values, { label: " ", stroke: line.colour + "55", width: 1, points: { show: false } });
    add(line, shown,
      { label: line.name || "value", stroke: line.colour, width: 2, dash: line.dash, points: { show: !many, size: 6 } });
  }
  if (!tables.length) return null;
  const measured = extremes(drawn.flatMap((line) => line.values)), whole = extremes([...measured, ...intervals]);
  const last = (plot) => { if (plot.legend.idx === null)
    plot.setLegend({ idxs: plot.data.map((values) => values.findLastIndex((value) => typeof value === "number")) }, false); };
  requestAnimationFrame(() => {
    if (!box.isConnected) return;
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    new uPlot({
      width: box.clientWidth - 24, height: 200, series, bands, legend: { show: true },
      scales: { x: { time: false }, y: { range: () => ends(unit, ...measured, ...whole) } }, cursor: { y: false },
      axes: [{ ...axis, size: 30, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 1e5] },
        { ...axis, size: 56, values: (plot, ticks) => ticks.map((tick) => digits(plot, tick)) }],
      hooks: { ready: [last], setLegend: [last] },
    }, uPlot.join(tables), box);
    for (const row of box.querySelectorAll(".u-series"))
      row.hidden = !row.querySelector(".u-label").textContent.trim();
  });
  return box;
}
const colourOf = (place) => colours[place % colours.length];
const dashOf = (place) => place < colours.length ? undefined : [6, 4];
function swatchOf(place) {
  const made = el("span", { className: dashOf(place) ? "swatch dashed" : "swatch" });
  made.style.setProperty("--run", colourOf(place));
  return made;
}

// -- runs ------------------------------------------------------------------------------------------

const TOLD = ["log_path", "started", "command", "env", "tasks", "agent", "train_tasks", "test_tasks", "model_name", "steps", "max_steps"];

const isLive = (run) => run.what === "run" && !run.finished && Date.now() / 1000 - run.written < 120;

/* Return the names of all texts that differ between the runs that have them. */
const differing = (runs, texts) => [...new Set(runs.flatMap((run) => Object.keys(texts(run))))].filter((key) => !TOLD.includes(key) &&
  new Set(runs.map((run) => texts(run)[key]).filter((value) => value !== undefined)).size > 1);

async function showRuns() {
  const { runs } = await get("runs");
  if (!chosen.size) runs.slice(0, colours.length).forEach((run) => chosen.add(run.id));
  const keys = differing(runs, (run) => run.settings);
  const shown = runs.filter((run) => chosen.has(run.id));
  const swatch = (run) => swatchOf(shown.indexOf(run));
  const mark = (run) => el("input", { type: "checkbox", checked: chosen.has(run.id), "aria-label": `draw ${run.name}`,
    onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](run.id); show(); } });
  const values = (run) => keys.filter((key) => !["", "[]", "{}", "None", undefined].includes(run.settings[key]))
    .map((key) => `${key}=${run.settings[key]}`).join("  ");
  const lines = (key) => shown.map((run, place) => ({ name: run.name, colour: colourOf(place), dash: dashOf(place), ...run[key] }));
  return [
    el("h1", {}, home),
    el("div", { className: "tools" }, smoothing(), shown.length > 1 && link(["runs", ...shown.map((run) => run.id)], `compare these ${shown.length} runs`)),
    el("div", { className: "panels" }, panel("Reward in training", "mean reward of an episode, by step", lines("reward")),
      panel("Held-out reward", "mean reward, temperature 1, by step", lines("held_out"))),
    table([
      ["", (run) => [mark(run), chosen.has(run.id) && swatch(run)]],
      ["run", (run) => [link(["run", run.id], run.name), isLive(run) && el("span", { className: "live" }, " live"),
        el("br"), el("small", {}, cut(values(run), 200))]],
      ["of", (run) => [run.trains || run.what, el("br"), el("small", {}, cut(run.model, 60))]],
      ["steps", (run) => run.what === "run" ? `${run.steps}${run.planned ? " of " + run.planned : ""}` : "", true],
      ["reward", (run) => number(run.reward.values.at(-1)), true],
      ["held out", (run) => [run.scores.before ?? run.held_out.values[0], run.scores.after ?? run.held_out.values.slice(1).at(-1)]
        .filter((value) => value !== undefined).map((value) => number(value) || value).join(" \u2192 "), true],
      ["episodes", (run) => [count(run.episodes), el("br"), el("small", {}, `${count(run.recorded)} recorded`)], true],
    ], runs, "There are no runs in these folders yet. New runs will appear here."),
    about("Held out: mean reward at temperature 1 on tasks that are not used for training, before and after training."),
  ];
}
/* Compare several runs: a panel per metric with one line per run, and tables of scores, costs and differences. */
async function showCompared(...ids) {
  const runs = await Promise.all(ids.map((run) => get("run", { run })));
  where([["runs", ...ids], counted(runs.length, "run")]);
  const panels = new Map(runs.flatMap((run) => run.panels).map((each) => [each.key, each]));
  const lines = (key) => runs.flatMap((run, place) => run.panels.filter((each) => each.key === key).map((each) =>
    ({ ...each, name: run.name, colour: colourOf(place), dash: dashOf(place) })));
  const compared = (rows, value) => table([["", (row) => row], ...runs.map((run, place) => [run.name, (row) => value(run, row) ?? "",
    false, [swatchOf(place), " ", link(["run", run.id], run.name)]])], rows);
  const names = (of) => [...new Set(runs.flatMap(of))];
  const score = (run, name) => run.table.find((row) => row.name === name);
  const differ = [(run) => run.settings, (run) => run.facts].map((texts) => [texts, differing(runs, texts)]);
  return [
    el("h1", {}, home === "Runs" ? "Comparison of runs" : home),
    el("div", { className: "tools" }, smoothing()),
    section("Scores", compared(names((run) => run.table.map((row) => row.name)), (run, name) => score(run, name) && scoreText(score(run, name)))),
    panels.size > 0 && section("Plots", el("div", { className: "panels" }, [...panels.values()].map((each) => panel(each.title, each.unit, lines(each.key))))),
    section("Tokens and time", compared(["steps", ...names((run) => [...Object.keys(run.tokens), ...Object.keys(run.time || {})])], (run, name) =>
      name === "steps" ? progress(run) : run.tokens[name] ?? (run.time && run.time[name] !== undefined ? `${count(Math.round(run.time[name]))} s` : ""))),
    section("Differences", differ.map(([texts, keys]) => keys.length > 0 && compared(keys, (run, key) => texts(run)[key])),
      differ.every(([, keys]) => !keys.length) && about("All settings, machines and versions are the same.")),
  ];
}
const scoreText = (row) => [`reward ${row.reward}`, el("br"), el("small", {}, `success ${row.success}, ${counted(row.episodes, "episode")}`)];
const progress = (run) => `${run.steps}${run.planned > run.steps ? " of " + run.planned : ""}${run.finished ? "" : ", not finished"}`;
const smoothing = () => el("label", {}, "smoothing ", el("input", { type: "range", min: 0, max: 0.95, step: 0.05,
  value: asked.smooth, onchange: (event) => { asked.smooth = Number(event.target.value); show(); } }));

const nameOf = ({ model, step, split }) => model ? `${model}, ${split === "test" ? "held-out" : "training"} tasks` : step < 0 ? "samples before training" :
  step > 2e9 ? "samples after training" : split !== "test" ? `step ${step + 1}` :
    step ? `held out, after step ${step}` : "held out, before step 1";
const stagePath = (run, stage) => ["step", run, stage.split, stage.model, stage.step];

async function showRun(id) {
  const run = await get("run", { run: id });
  where([["run", id], run.name]);
  const trained = run.stages.filter((stage) => stage.split === "train");
  const lastStep = trained.at(-1);
  const draw = (each) => panel(each.title, each.unit, [{ name: "", colour: colourOf(0), ...each }]);
  const more = el("div", { className: "panels" });
  const pick = el("select", { "aria-label": "another metric", onchange: async () => {
    asked.metric = pick.value;
    const found = asked.metric && await get("metric", { run: id, key: asked.metric });
    more.replaceChildren(found && panel(asked.metric, "by step", [{ name: "", colour: colourOf(0), ...found }]) || "");
  } }, el("option", { value: "" }, `one of ${run.more.length} other metrics`),
  run.more.slice(0, 1000).map((key) => el("option", { value: key, selected: key === asked.metric }, key)));
  if (pick.value) pick.dispatchEvent(new Event("change"));
  return [
    el("h1", {}, run.name),
    about([run.trains, run.model, run.what !== "run" ? run.what : `steps ${progress(run)}`].filter(Boolean).join(" \u00b7 "),
      isLive(run) ? el("span", { className: "live" }, " live") : "", " \u00b7 ",
      `${count(run.recorded)} of ${counted(run.episodes, "episode")} recorded in full`,
      run.broken ? ` \u00b7 ${counted(run.broken, "unreadable line")}` : "", el("br"), el("small", {}, run.path)),
    lastStep && !lastStep.model && el("div", { className: "tools" },
      link([...stagePath(id, lastStep), "worst"], `worst ${lastStep.recorded ? "recorded " : ""}episode of the last step`),
      link([...stagePath(id, lastStep), "best"], "best"), smoothing()),
    run.table.length > 0 && section("Scores", about("Numbers in parentheses and after \u00b1 are 95% confidence intervals over tasks."), scoresTable(run.table), passAt(run.table)),
    run.panels.length > 0 && section("Plots", el("div", { className: "panels" }, run.panels.map(draw)),
      run.notes.length > 0 && about(run.notes.join(" ")), run.more.length > 0 && el("div", { className: "tools" }, pick), more),
    run.time && section("Where the time went", shares(run.time)),
    Object.keys(run.tokens).length > 0 && section("Tokens and cost", about("Tokens used for training, and for held-out scores during training."), pairs(run.tokens)),
    run.skipped > 0 && about(`Batches skipped because there was nothing to learn from them: ${count(run.skipped)}.`),
    run.failures.length > 0 && section("Episodes that failed", table([["type", (f) => f.kind], ["episodes", (f) => count(f.count), true],
      ["last error", (f) => cut(text(f.error), 400)]], run.failures)),
    section(run.what === "evaluation" ? "Models" : "Steps", about(run.what === "run" && "Newest first. Samples are greedy episodes of a few held-out tasks. ", "Rewards are over all episodes if the run has summaries of them, and otherwise only over recorded episodes. \u00b1 is the 95% confidence interval of the mean over groups. Only groups whose rewards differ contribute to learning."), table([
      ["", (stage) => link(stagePath(id, stage), nameOf(stage))],
      ["reward", (stage) => stage.score, true],
      ["lowest to highest", (stage) => `${number(stage.low)} to ${number(stage.high)}`, true],
      ["groups to learn from", (stage) => stage.split === "train" ? `${stage.mixed} of ${stage.groups}` : "", true],
      ["episodes", (stage) => count(stage.episodes), true],
      ["recorded", (stage) => count(stage.recorded), true],
    ], run.stages.toReversed().slice(0, 500), "No episodes have been recorded yet.")),
    section("Settings", pairs(run.facts), el("details", {}, el("summary", {}, counted(Object.keys(run.settings).length, "setting")), pairs(run.settings))),
  ];
}

const pairs = (texts) => table([["", ([key]) => key], ["", ([, value]) => value]], Object.entries(texts), "Nothing was recorded.");
const scoresTable = (rows) => table([
  ["", (row) => row.name], ["episodes", (row) => count(row.episodes), true],
  ["success", (row) => row.success, true], ["reward", (row) => row.reward, true],
  ...rows[0].pass_at.map(({ k }, place) => [`pass@${k}`, (row) => row.pass_at[place] && row.pass_at[place].text, true]),
], rows);
const passAt = (rows) => rows[0].pass_at.length > 1 && panel("pass@k", "share of tasks solved by one of k episodes, by k", rows.map((row, place) =>
  ({ name: row.name, colour: colourOf(place), dash: dashOf(place), steps: row.pass_at.map(({ k }) => k), values: row.pass_at.map(({ value }) => value) })), "k");

function shares(parts) {
  const whole = Object.values(parts).reduce((a, b) => a + b, 0) || 1;
  const named = Object.entries(parts).map(([name, seconds], place) => {
    const words = `${name} ${(100 * seconds / whole).toFixed(0)} % (${count(Math.round(seconds))} s)`;
    const [part, mark] = [el("div", { title: words }), el("span", { className: "swatch" })];
    part.style.width = `${100 * seconds / whole}%`;
    part.style.background = colours[place] || "#777";
    mark.style.setProperty("--run", colours[place] || "#777");
    return [part, el("span", {}, mark, " ", words)];
  });
  return [el("div", { className: "share" }, named.map(([part]) => part)), el("div", { className: "tools" }, named.map(([, words]) => words))];
}

// -- a step ----------------------------------------------------------------------------------------

async function showStep(run, split, model, step, end) {
  const found = await get("step", { run, split, model, step });
  const sorted = found.episodes.toSorted((a, b) => a.reward - b.reward);
  if (end) {
    const order = end === "worst" ? sorted : sorted.toReversed();
    const first = order.find((each) => each.kind !== "summary") || order[0];
    if (first) return location.replace("#episode/" + first.id);
  }
  const name = nameOf({ split, model, step: Number(step) });
  where([["run", run], found.name], [["step", run, split, model, step], name]);
  const groups = Object.values(Object.groupBy(found.episodes, (each) => [each.kind, each.grp, each.seat])).map((members) => {
    const rewards = members.map((each) => each.reward);
    return { members, mean: meanOf(members), spread: Math.max(...rewards) - Math.min(...rewards), task: members[0].task };
  });
  const orders = { "lowest mean": (a, b) => a.mean - b.mean, "highest mean": (a, b) => b.mean - a.mean,
    "largest spread": (a, b) => b.spread - a.spread, "as played": () => 0 };
  const sort = el("select", { "aria-label": "order of the groups", onchange: () => { asked.sort = sort.value; show(); } },
    Object.keys(orders).map((order) => el("option", { selected: order === asked.sort }, order)));
  const known = (group) => Number(group.members[0].kind !== "summary");
  const few = 50, rows = (many) => table(columnsFor(sorted), sorted.slice(0, many));
  const all = el("div", {}, rows(few));
  return [
    el("h1", {}, name),
    section("Groups", el("div", { className: "tools" }, "sort by ", sort), table([
      ["task", (group) => [cut(group.task, 160) || el("span", { className: "quiet" }, known(group) ? "no task" : "not recorded"),
        group.members[0].seat && el("small", {}, ` seat ${group.members[0].seat}`)]],
      ["mean", (group) => number(group.mean), true], ["spread", (group) => number(group.spread), true],
      ["rewards", (group) => chips(group.members)],
    ], groups.toSorted((a, b) => known(b) - known(a) || orders[asked.sort](a, b)))),
    section("Episodes, worst first", all, sorted.length > few && el("div", { className: "tools" },
      el("button", { onclick: (event) => { all.replaceChildren(rows(Infinity)); event.target.remove(); } }, `show all ${sorted.length}`))),
  ];
}
const chips = (members, here) => el("div", { className: "chips" }, members.toSorted((a, b) => a.reward - b.reward).map((each) =>
  each.kind === "summary" ? el("span", { title: "not recorded" }, number(each.reward))
    : Object.assign(link(["episode", each.id], number(each.reward)), { className: each.id === here ? "here" : "" })));
const columnsFor = (episodes) => episodeColumns.filter(([name]) => name !== "seat" || episodes.some((each) => each.seat));
const episodeColumns = [
  ["reward", (each) => link(["episode", each.id], number(each.reward, 3)), true],
  ["turns", (each) => count(each.turns), true], ["tokens", (each) => count(each.tokens), true],
  ["breaks", (each) => count(each.breaks), true], ["end", (each) => each.ending], ["seat", (each) => each.seat],
  ["task", (each) => cut(each.task, 120)], ["last reply", (each) => cut(each.said, 160)],
];

// -- an episode ------------------------------------------------------------------------------------

async function showEpisode(...ids) {
  const found = await Promise.all(ids.map((id) => get("episode", { id })));
  const { entry, name, same } = found[0], step = found[0].step.filter((id) => holds("episode", id));
  where([["run", entry.run], name], [stagePath(entry.run, entry), nameOf(entry)]);
  const here = step.indexOf(entry.id);
  const go = (by, what) => here >= 0 && step[here + by] !== undefined &&
    el("a", { href: "#episode/" + step[here + by], id: what, rel: what }, what);
  const others = same.filter((each) => each.id !== entry.id && holds("episode", each.id));
  const beside = el("select", { "aria-label": "compare with", onchange: () => { if (beside.value) location.hash = `#compare/${entry.id}/${beside.value}`; } },
    el("option", { value: "" }, `compare with one of ${others.length} episodes of the same task`),
    others.map((each) => el("option", { value: each.id }, `${nameOf(each)}: ${number(each.reward)}`)));
  const colour = (value, title) => el("button", { "aria-pressed": String(asked.colour === value), title,
    onclick: () => { asked.colour = value; show(); } }, value);
  const many = found.length > 1;
  return [
    el("h1", {}, many ? "Two episodes" : `Episode, reward ${number(entry.reward, 3)}`),
    entry.task && about("task ", cut(entry.task, 200)),
    el("div", { className: "tools" }, "colour tokens by", colour("none", "text only"),
      colour("probability", "redder tokens were less probable when sampled"),
      colour("advantage", "blue: the episode's reward is above its group's mean; orange: below"),
      go(-1, "previous"), go(1, "next"), others.length > 0 && !many && beside),
    many ? el("div", { className: "sides two" }, found.map((each) => el("div", {}, el("h3", {}, link(["episode", each.entry.id],
      `${nameOf(each.entry)}: reward ${number(each.entry.reward, 3)}`)), talk(each))))
      : el("div", { className: "sides" }, talk(found[0]), el("div", { className: "side" }, facts(found[0]))),
  ];
}

function talk(found) {
  const { row, pieces, group, entry } = found;
  const several = new Set(list(row.steps).map((step) => (step.logs || {}).caller)).size > 1;
  const mean = meanOf(group);
  const most = Math.max(1e-9, ...group.map((each) => Math.abs(each.reward - mean)));
  const strength = (entry.reward - mean) / most;
  const anew = new Set(sequences(list(row.steps)).slice(1).map((datum) => datum.turns[0]));
  return el("div", { className: "talk" }, list(row.steps).map((step, place) => {
    const logs = step.logs || {}, call = step.call || {};
    const reply = step.text === undefined ? null : el("p", { className: "said" }, el("b", {}, "sampled "),
      asked.colour !== "none" && pieces && pieces[place].length ? coloured(pieces[place], step, strength) : el("bdi", {}, text(step.text)));
    return el("section", { className: "turn", id: "turn" + place },
      el("h5", {}, [`turn ${place + 1}`, several && logs.caller && `called by ${text(logs.caller)}`,
        typeof step.ob_len === "number" && `${counted(step.ob_len, "token")} in, ${count(step.ac_len)} out`,
        step.reward ? `reward ${number(step.reward, 3)}` : "",
        (step.metrics || {}).given_up && "given up: the agent did not read this reply"].filter(Boolean).join(" \u00b7 "),
      anew.has(place) && el("span", { className: "new" }, " \u00b7 new sequence")),
      list(call.tools).length > 0 && el("details", {}, el("summary", {}, counted(call.tools.length, "tool")),
        el("pre", {}, JSON.stringify(call.tools, null, 1))),
      list(call.messages).map(message), reply,
      list(step.reply && step.reply.tool_calls).map((each) => el("pre", {}, "\u2192 " + text(each.function && each.function.name) + " " +
        text(each.function && each.function.arguments))),
      Object.entries(logs).filter(([key]) => !["caller", "lineage", "drift", "drift_at"].includes(key) &&
        !(step.call && ["told", "said"].includes(key))).map(([key, value]) =>
        el("p", { className: key === "said" ? "said" : "" }, el("b", {}, key, " "), el("bdi", {}, text(value)))),
      logs.drift && el("p", { className: "break" }, `The next prompt does not continue the sampled tokens: ${text(logs.drift)}. ${text(logs.drift_at)}`));
  }), list(row.steps).length === 0 && about("The agent did not call a model."),
  entry.kind === "summary" && about("The messages were not recorded. Use record=1 to record all episodes in full."));
}

function message(said) {
  const parts = typeof said.content === "string" ? [said.content] : list(said.content).map((part) =>
    part.text !== undefined ? text(part.text) : part.thinking !== undefined ? text(part.thinking) : `[${text(part.type)}]`);
  return el("p", {}, el("b", {}, text(said.role), " "), el("bdi", {}, parts.join("\n")),
    list(said.tool_calls).map((each) => el("pre", {}, "\u2192 " + JSON.stringify(each.function || each))));
}

function coloured(texts, step, strength) {
  return el("bdi", {}, texts.map((piece, place) => {
    const logprob = list(step.logprobs)[place];
    const known = typeof logprob === "number";
    const made = el("span", { title: `token ${step.tokens[place]}` + (known ? `, probability ${Math.exp(logprob).toFixed(3)}` : "") }, piece);
    if (asked.colour === "probability" && known) made.style.background = `rgba(213, 94, 0, ${0.75 * (1 - Math.exp(logprob))})`;
    if (asked.colour === "advantage") made.style.background = strength < 0
      ? `rgba(213, 94, 0, ${-0.6 * strength})` : `rgba(0, 114, 178, ${0.6 * strength})`;
    return made;
  }));
}

function facts({ row, group, entry, pieces }) {
  const steps = list(row.steps), sums = {};
  for (const step of steps) for (const [key, value] of Object.entries(step.metrics || {}))
    if (!key.startsWith("stop/")) sums[key] = (sums[key] || 0) + Number(value);
  const earned = steps.map((step, place) => [`turn ${place + 1}`, step.reward]).filter(([, reward]) => reward);
  if (row.final_reward) earned.push(["group reward", row.final_reward]);
  const mean = meanOf(group);
  const card = (title, ...inside) => el("div", { className: "card" }, el("h3", {}, title), inside);
  const lines = (pairs) => el("dl", {}, pairs.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value))));
  const error = (row.about || {}).error;
  return [
    card("Reward", lines([...earned.map(([key, value]) => [key, number(value, 3)]), ["total", number(entry.reward, 3)],
      ["minus the group's mean", number(entry.reward - mean, 3)], ["ended", entry.ending]].filter(([, value]) => value !== ""))),
    row.trace && card("Read from a trace", lines([["format", text(row.trace.format)],
      ["tokens", row.trace.has_tokens ? "as sampled" : "not recorded"],
      ["reward", row.trace.has_reward ? "as recorded" : "not recorded, shown as 0"]])),
    card("Group", chips(group, entry.id)),
    error && card("Error", el("p", {}, text(error))),
    Object.keys(sums).length > 0 && card("Metrics", lines(Object.entries(sums).map(([key, value]) => [key, number(value, 3).replace(/\.?0+$/, "")]))),
    steps.some((step) => step.prompt) && el("div", { className: "card tree" }, el("h3", {}, "Token sequences"),
      about(counted(entry.lineages, "datum").replace("datums", "data"), " to train on, ", counted(entry.breaks, "break")), sequenceList(sequences(steps))),
    steps.some((step) => step.tokens) && !pieces && el("p", { className: "quiet" },
      `Tokens cannot be coloured, because the tokenizer ${text(row.tokenizer)} is not on this machine.`),
  ];
}

/* Return an episode's token sequences, which are lists of turns where each turn extends all tokens of
   the previous one. If a new sequence continues an earlier turn, "from" is that turn. Otherwise, we
   look for the longest common prefix among the last 20 sequences. "root" is the first turn of that
   sequence and "shared" the length of the prefix. "why" is what broke the caller's previous sequence. */
function sequences(steps) {
  const data = [];
  if (!steps.some((step) => step.prompt)) return data;
  steps.forEach((step, place) => {
    const { after = null, tokens } = step.prompt || {}, new_ = [...list(tokens), ...list(step.tokens)];
    const on = after === null ? null : data.find((each) => each.turns.at(-1) === after);
    if (on) {
      on.turns.push(place);
      if (on.from === null) new_.forEach((token) => on.tokens.push(token));
      return;
    }
    const caller = (of) => (of.logs || {}).caller;
    const last = steps.slice(0, place).findLast((each) => caller(each) === caller(step));
    const made = { turns: [place], tokens: new_, from: after, shared: null, why: text((last && last.logs || {}).drift) };
    for (const other of after === null ? data.slice(-20) : []) {
      let length = 0;
      while (length < new_.length && new_[length] === other.tokens[length]) length++;
      if (other.from === null && length > (made.shared || 0)) [made.root, made.shared] = [other.turns[0], length];
    }
    data.push(made);
  });
  return data;
}

function sequenceList(data) {
  const turn = (place) => [el("a", { href: location.hash, onclick: (event) => {
    event.preventDefault();
    document.getElementById("turn" + place).scrollIntoView({ behavior: "smooth" });
  } }, String(place + 1)), " "];
  const begins = ({ from, shared, root, why }) => [
    from !== null ? `branches off after turn ${from + 1}` : shared ? `shares its first ${counted(shared, "token")} with the sequence of turn ${root + 1}` : "",
    why && `broken by: ${why}`].filter(Boolean).join("; ");
  return el("ol", {}, data.map((datum) => el("li", {}, datum.turns.length === 1 ? "turn " : "turns ", datum.turns.map(turn),
    el("div", { className: "quiet" }, begins(datum)))));
}

// -- search, and the page --------------------------------------------------------------------------

async function showSearch(words) {
  const { episodes } = await get("search", { words });
  document.querySelector("#search input").value = words;
  where([["search", words], `\u201c${words}\u201d`]);
  return [el("h1", {}, counted(episodes.length, "episode")), about(`Episodes that contain \u201c${words}\u201d, newest first.`),
    table([["run", (each) => link(["run", each.run], each.name)], ["", (each) => nameOf(each)], ...episodeColumns.filter(([name]) =>
      ["reward", "turns", "task", "last reply"].includes(name))], episodes, "No episodes contain these words.")];
}

function where(...places) {
  trail.replaceChildren(link([""], home), ...places.map(([to, name]) => link(to, cut(text(name), 60))));
}

const views = { "": showRuns, runs: showCompared, run: showRun, step: showStep, episode: showEpisode, compare: showEpisode, search: showSearch };
const changes = (name) => ["", "runs", "run", "step"].includes(name);

async function show() {
  const [name, ...rest] = (location.hash || "#" + (saved ? saved.about.home : "")).slice(1).split("/").map(decodeURIComponent);
  const at = location.hash;
  where();
  try {
    const made = await (views[name] || showRuns)(...rest);
    if (made && at === location.hash) view.replaceChildren(...made.flat(9).filter(Boolean));
  } catch (error) {
    view.replaceChildren(el("h1", {}, "This cannot be shown"), about(error.message));
  }
  document.title = [...trail.children].map((each) => each.textContent).join(" \u203a ");
}

async function lookAgain() {
  if (document.hidden) return;
  try {
    const state = await (await ask("state")).json();
    document.getElementById("behind").textContent = state.trouble ? `Not everything can be read: ${state.trouble}.` : state.behind > 1e6 ? `${count(Math.round(state.behind / 1e6))} MB remaining to read.` : "";
    const name = location.hash.slice(1).split("/")[0];
    if (String(state.version) === version || Date.now() < notBefore || !changes(name)) return;
    if (!view.contains(document.activeElement)) await show();
  } catch { document.getElementById("behind").textContent = "The viewer was stopped."; }
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = { j: "next", k: "previous" }[event.key];
  if (event.key === "/" && !saved) { event.preventDefault(); document.querySelector("#search input").focus(); }
  if (to && document.getElementById(to)) document.getElementById(to).click();
  if (event.key === "u" && trail.children.length > 1) trail.children[trail.children.length - (location.hash.startsWith("#episode") ? 1 : 2)].click();
});
addEventListener("hashchange", () => { scrollTo(0, 0); show(); });
let resized;
let width = innerWidth;  // ignore the height, which changes when scrolling on phones
addEventListener("resize", () => {
  clearTimeout(resized);
  if (innerWidth !== width) resized = setTimeout(show, 200);
  width = innerWidth;
});
if (saved) {
  const { written, version: evert, holds: what, omitted } = saved.about;
  for (const id of ["search", "slash"]) document.getElementById(id).remove();
  document.getElementById("behind").textContent = `Saved by evert ${evert}, ${written}. This page includes ${what}.` +
    (omitted ? ` ${count(omitted)} more steps or episodes did not fit.` : "");
} else {
  setInterval(lookAgain, 2000);
  document.getElementById("search").addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = "#search/" + encodeURIComponent(event.target.words.value);
  });
  keepToken();
}
show();
