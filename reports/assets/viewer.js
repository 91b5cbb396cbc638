"use strict";
// Mail text and model output are hostile: everything is set as text, nothing is parsed as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const filters = document.getElementById("filters");
const list = document.getElementById("questions");
const more = document.getElementById("more");
const PAGE = 40;
const SIDE_BY_SIDE = 2;
const BADGES = { correct: "✓ correct", wrong: "✗ wrong", none: "– no answer", error: "! error", unjudged: "not judged" };
let shown = PAGE;

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = String(text);
  return node;
}

function labelOf(name) {
  return String(name).replaceAll("_", " ");
}

function resultOf(run) {
  if (run.error) return "error";
  if (!run.correct && "answer" in run && (run.answer === null || run.answer === undefined)) return "none";
  if (run.correct === null || run.correct === undefined) return "unjudged";
  return run.correct ? "correct" : "wrong";
}

function option(select, value, text) {
  const node = element("option", "", text);
  node.value = value;
  select.append(node);
}

[...new Set(data.questions.map((question) => question.kind))].sort().forEach((kind) => option(filters.elements.kind, kind, labelOf(kind)));
option(filters.elements.policy, "", `any ${data.of}`);
data.policies.forEach((name) => option(filters.elements.policy, name, labelOf(name)));
if (data.compared.length > 1) {
  const names = data.of === "policy" ? data.compared.map(labelOf).join(" and ") : `${data.of}s`;
  option(filters.elements.result, "differ", `${names} differ`);
}

function matches(question) {
  const { text, kind, policy, result } = Object.fromEntries(new FormData(filters));
  if (kind && question.kind !== kind) return false;
  const runs = policy ? [question.runs[policy]].filter(Boolean) : Object.values(question.runs);
  if (policy && !runs.length) return false;
  if (result === "differ") {
    const results = data.compared.filter((name) => name in question.runs).map((name) => resultOf(question.runs[name]));
    if (new Set(results).size < 2) return false;
  } else if (result && !runs.some((run) => resultOf(run) === result)) return false;
  if (!text) return true;
  const words = [question.question, question.reference, ...Object.values(question.runs).map((run) => run.answer ?? "")];
  return words.join("\n").toLowerCase().includes(text.toLowerCase());
}

// One assistant turn as people read it: tool calls as name(argument: value).
function readable(content) {
  return String(content ?? "").replace(/<tool_call>\s*([\s\S]*?)\s*(?:<\/tool_call>|$)/g, (whole, inner) => {
    try {
      const call = JSON.parse(inner);
      const given = Object.entries(call.arguments ?? {}).map(([key, value]) => `${key}: ${JSON.stringify(value)}`);
      return `${call.name}(${given.join(", ")})`;
    } catch {
      return whole;
    }
  });
}

function fact(facts, name, value) {
  if (value !== undefined && value !== null && value !== "") facts.append(element("dt", "", name), element("dd", "", value));
}

function transcriptOf(question, name, run) {
  const box = element("div", "transcript");
  const facts = element("dl");
  fact(facts, data.of, labelOf(name));
  fact(facts, "question", question.question);
  fact(facts, "reference", question.reference);
  fact(facts, "answer", "answer" in run ? run.answer ?? "no answer" : null);
  fact(facts, "judged", `${BADGES[resultOf(run)]}${run.reason ? ": " + run.reason : ""}`);
  fact(facts, "reward", run.reward);
  fact(facts, "made of", run.rewards);
  fact(facts, "judge's reason", run.explanation);
  fact(facts, "error", run.error);
  fact(facts, "outcome", `${labelOf(run.outcome ?? "ended")}, ${run.turns} turns${run.seconds ? `, ${Number(run.seconds).toFixed(2)} s` : ""}`);
  if (question.gold) {
    fact(facts, "gold mails", question.gold.join(", ") || "unknown");
    fact(facts, "cited mails", (run.source_ids ?? []).map((id) => id + (question.gold.includes(id) ? " ✓" : "")).join(", ") || "none");
  }
  box.append(facts);
  for (const turn of run.transcript ?? []) {
    const node = element("div", "turn");
    if (turn.role === "assistant") node.classList.add("assistant");
    node.append(element("div", "role", turn.role), element("pre", "", turn.role === "assistant" ? readable(turn.content) : turn.content));
    box.append(node);
  }
  if (!(run.transcript ?? []).length) box.append(element("p", "quiet", "No conversation was recorded."));
  return box;
}

function cardOf(question) {
  const card = element("article");
  card.append(element("h3", "", question.question));
  const meta = element("p", "meta", labelOf(question.kind));
  if (question.reference) meta.append(" · reference: ", element("b", "", question.reference));
  if (question.inbox) meta.append(` · ${question.inbox}`);
  const runs = element("div", "runs");
  const transcripts = element("div", "transcripts");
  card.append(meta, runs, transcripts);
  const open = [];
  const names = [...data.policies.filter((name) => name in question.runs)];
  for (const name of names) {
    const run = question.runs[name];
    const result = resultOf(run);
    const cell = element("button", "run");
    cell.type = "button";
    cell.setAttribute("aria-expanded", "false");
    const top = element("span", "top");
    top.append(element("span", "", labelOf(name)), element("span", `badge ${result}`, BADGES[result]));
    const text = run.error ?? run.answer ?? labelOf(run.outcome ?? "");
    cell.append(top, element("span", "answer", run.reward === undefined ? text : `${run.reward} · ${text}`));
    // Two stay open, the oldest gives way: what is compared stands side by side.
    cell.addEventListener("click", () => {
      if (open.includes(cell)) open.splice(open.indexOf(cell), 1);
      else open.push(cell);
      if (open.length > SIDE_BY_SIDE) open.shift();
      for (const other of runs.children) other.setAttribute("aria-expanded", String(open.includes(other)));
      const order = [...runs.children].filter((other) => open.includes(other));
      transcripts.replaceChildren(...order.map((other) => transcriptOf(question, other.dataset.name, question.runs[other.dataset.name])));
    });
    cell.dataset.name = name;
    runs.append(cell);
  }
  return card;
}

function render() {
  const found = data.questions.filter(matches);
  list.replaceChildren(...found.slice(0, shown).map(cardOf));
  document.getElementById("count").textContent = `${found.length} of ${data.questions.length} questions`;
  more.hidden = found.length <= shown;
}

filters.addEventListener("input", () => { shown = PAGE; render(); });
filters.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", () => { shown += PAGE; render(); });
render();
