// The page of the service. Everything that comes from a mail, a model or the user is set as text, never as markup.
import { forget, past, remember } from "./history.js";

const $ = (id) => document.getElementById(id);
const ask = $("ask"), access = $("access"), answers = $("answers");
const { inbox_address: inbox, query_date: date, question, follow_up: followUp } = ask.elements;
let key = sessionStorage.getItem("key") ?? "";
let running = null;
let last = null; // the newest question with an answer

function node(tag, { text, className, ...rest } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), rest);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function announce(text) { $("announcements").textContent = text; }

async function call(path, options = {}) {
  const headers = { ...(options.body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  const problem = new Error(said.error ?? `the service answered with HTTP ${response.status}`);
  problem.status = response.status;
  problem.retryAfter = Number(response.headers.get("Retry-After")) || 0;
  if (response.status === 401) needKey(key ? "This key is not known. Check it and try again." : undefined);
  throw problem;
}

// --- access key -------------------------------------------------------------------------------------------------------------
function needKey(note) {
  access.hidden = false;
  if (note) $("key-note").textContent = note;
  $("key").focus();
}

access.addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = $("key").value.trim();
  if (!/^[ -~]+$/.test(typed)) return needKey("A key has only letters, digits and signs of ASCII. Copy it again.");
  key = typed;
  sessionStorage.setItem("key", key);
  begin();
});

// --- inboxes and examples ---------------------------------------------------------------------------------------------------
let latest = 0;
async function showInboxes() {
  const mine = ++latest;
  const { inboxes } = await (await call(`/inboxes?limit=30&contains=${encodeURIComponent(inbox.value.trim())}`)).json();
  if (mine !== latest) return inboxes;
  $("inboxes").replaceChildren(...inboxes.map((value) => node("option", { value })));
  return inboxes;
}

async function showExamples() {
  const address = inbox.value.trim();
  const { examples } = address.includes("@")
    ? await (await call(`/examples?inbox=${encodeURIComponent(address)}`)).json()
    : { examples: [] };
  const buttons = examples.map((example) => {
    const button = node("button", { type: "button", text: example.question });
    button.addEventListener("click", () => {
      question.value = example.question;
      date.value = example.query_date.slice(0, 10);
      ask.requestSubmit();
    });
    return node("li", {}, button);
  });
  $("examples").querySelector("ul").replaceChildren(...buttons);
  $("examples").hidden = !buttons.length;
}

let pause;
inbox.addEventListener("input", () => {
  clearTimeout(pause);
  offerFollowUp();
  pause = setTimeout(() => { showInboxes().catch(() => {}); showExamples().catch(() => {}); }, 200);
});

// --- asking -----------------------------------------------------------------------------------------------------------------
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask.requestSubmit();
  }
});
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });

ask.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running) return;
  const asked = { question: question.value.trim(), inbox_address: inbox.value.trim(), query_date: date.value };
  const before = followUp.checked && follows(asked) ? last : null;
  const parameters = { ...asked, question: inContext(asked.question, before) };
  const card = new Card(asked, before);
  $("examples").open = false; // otherwise they push the answer off a small screen
  answers.prepend(card.article);
  card.article.scrollIntoView({ block: "nearest" });
  running = new AbortController();
  $("send").disabled = true;
  $("stop").hidden = false;
  announce("Searching");
  try {
    const response = await call("/stream", { method: "POST", body: JSON.stringify({ parameters }), signal: running.signal });
    for await (const { event: kind, data } of events(response.body)) card.show(kind, data);
    card.ended();
  } catch (problem) {
    if (problem.name === "AbortError") card.fail("Stopped.");
    else card.fail(said(problem));
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").hidden = true;
  }
});

// The exchange before a question, in the form of serving/chat.py.
function inContext(typed, before) {
  const whole = before ? `Before: ${before.question} Answer: ${before.answer} Now: ${typed}` : typed;
  return whole.length <= question.maxLength ? whole : typed;
}

function follows({ inbox_address }) { return last?.inbox_address === inbox_address; }

function offerFollowUp() {
  $("follow-up").hidden = !follows({ inbox_address: inbox.value.trim() });
  if ($("follow-up").hidden) followUp.checked = false;
}

function said(problem) {
  if (problem instanceof TypeError) return "The service does not answer. It may be starting again: try once more in a moment.";
  const text = problem.message[0].toUpperCase() + problem.message.slice(1);
  return problem.retryAfter ? `${text} (about ${problem.retryAfter} seconds)` : text;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value.replaceAll("\r\n", "\n");
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let event = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (data.length) yield { event, data: JSON.parse(data.join("\n")) };
    }
  }
}

// --- one question and its answer --------------------------------------------------------------------------------------------
class Card {
  constructor(asked, before) {
    const { question, inbox_address, query_date } = this.asked = asked;
    const context = before ? `, after “${before.question}”` : "";
    this.steps = node("ol", { className: "steps" });
    this.answer = node("p", { className: "answer" });
    this.article = node("article", {},
      node("h3", { text: question }),
      node("p", { className: "note", text: `${inbox_address}, as of ${query_date}${context}` }), this.steps, this.answer);
    this.finished = false;
    this.doing("Searching the mailbox");
  }

  doing(text) {
    this.now?.remove();
    this.now = node("li", { className: "now", text });
    this.steps.append(this.now);
  }

  did(text) {
    this.now.before(node("li", { text }));
  }

  show(kind, data) {
    if (kind === "waiting") this.doing(`Waiting: number ${data.position} in the queue`);
    else if (kind === "step") this.step(data);
    else if (kind === "source") this.did(`Read “${data.subject || "(no subject)"}” from ${data.from_address}, ${day(data.date)}`);
    else if (kind === "token") { this.doing("Writing the answer"); this.answer.textContent += data.text; }
    else if (kind === "answer") this.done(data);
    else if (kind === "error") this.fail(data.error[0].toUpperCase() + data.error.slice(1));
  }

  step({ action, keywords, found, invalid }) {
    if (invalid) this.did("A call that made no sense");
    else if (action === "search") this.did(`Searched for ${keywords.join(", ") || "everything"}: ${found} mail${found === 1 ? "" : "s"}`);
    else if (action === "read" && !found) this.did("Tried to read a mail that is not there");
    this.doing(action === "search" ? "Choosing a mail" : action === "read" ? "Reading" : "Writing the answer");
  }

  end() {
    this.finished = true;
    this.now?.remove();
  }

  ended() { if (!this.finished) this.fail("The connection ended before the answer came. Ask again."); }

  fail(text) {
    if (this.finished) return;
    this.end();
    this.answer.remove();
    this.article.append(node("p", { className: "problem", text }));
    announce(text);
  }

  done(reply) {
    this.end();
    const { turns, seconds } = reply.metadata.episode;
    if (reply.answer === null) {
      this.answer.remove();
      this.article.append(node("p", { className: "problem", text: "The agent found no answer. Try other words, or a later date." }));
    } else {
      this.answer.textContent = reply.answer;
      last = { ...this.asked, answer: reply.answer };
      remember(last);
      offerFollowUp();
      showHistory().catch(() => {});
      this.article.append(badge(reply));
      for (const source of reply.sources) this.article.append(mail(source, source === best(reply.sources)));
    }
    this.article.append(node("p", { className: "note", text: `${turns} turn${turns === 1 ? "" : "s"}, ${seconds.toFixed(1)} s` }));
    if (reply.feedback_token) this.article.append(rating(reply));
    this.article.scrollIntoView({ block: "nearest" });
    announce(reply.answer === null ? "No answer found" : `Answer: ${reply.answer}`);
  }
}

function badge({ proven, success, sources }) {
  if (!sources.length) return node("span", { className: "badge bad", text: "No mail cited" });
  if (!success) return node("span", { className: "badge bad", text: "Cites a mail that was not read" });
  if (!proven) return node("span", { className: "badge warn", text: "Not found in the cited mail" });
  return node("span", { className: "badge good", text: "Found in the cited mail" });
}

function best(sources) { return sources.find(({ found }) => found) ?? sources[0]; }

function mail(source, open) {
  const fields = { From: marked(source, "from_address"), To: [source.to_addresses.join(", ")], Date: [day(source.date)], Subject: marked(source, "subject") };
  const list = node("dl");
  for (const [name, parts] of Object.entries(fields)) list.append(node("dt", { text: name }), node("dd", {}, ...parts));
  const summary = node("summary", { text: source.subject || "(no subject)" });
  if (!source.found) summary.append(node("span", { className: "badge warn", text: "value not found here" }));
  const body = node("pre", { tabIndex: 0 }, ...marked(source, "body"));
  const details = node("details", { open }, summary, node("div", { className: "mail" }, list, body));
  // Long mails: bring the proof into view inside the mail, without moving the page.
  requestAnimationFrame(() => {
    const first = body.querySelector("mark");
    if (first) body.scrollTop = Math.max(0, first.offsetTop - body.offsetTop - 60);
  });
  return details;
}

function marked(source, field) {
  const characters = Array.from(source[field]), parts = [];
  let end = 0;
  for (const mark of source.marks.filter((mark) => mark.field === field)) {
    parts.push(characters.slice(end, mark.start).join(""));
    parts.push(node("mark", { text: characters.slice(mark.start, mark.end).join("") }));
    end = mark.end;
  }
  parts.push(characters.slice(end).join(""));
  return parts;
}

function day(iso) { return iso.slice(0, 16).replace("T", " "); }

function thumb() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS(svg.namespaceURI, "path");
  path.setAttribute("d", "M2 10h4v11H2zM8 21V10l4-8c1.7 0 3 1.3 3 3v4h5.2c1.2 0 2.1 1.1 1.8 2.3l-1.8 8c-.2 1-1 1.7-2 1.7z");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return svg;
}

function rating(reply) {
  const box = node("div", { className: "rating" });
  const up = node("button", { type: "button", className: "quiet up" }, thumb(), "Right");
  const down = node("button", { type: "button", className: "quiet down" }, thumb(), "Wrong");
  const note = node("span", { className: "note" });
  const send = async (verdict, more = {}) => {
    try {
      await call("/feedback", { method: "POST", body: JSON.stringify({ token: reply.feedback_token, verdict, ...more }) });
      up.disabled = down.disabled = true;
      (verdict === "up" ? up : down).ariaPressed = "true";
      box.querySelector("form")?.remove();
      note.textContent = "Thank you. A person will look at it.";
    } catch (problem) {
      note.textContent = said(problem);
    }
    announce(note.textContent);
  };
  up.addEventListener("click", () => send("up"));
  down.addEventListener("click", () => {
    if (box.querySelector("form")) return;
    const correct = node("input", { name: "correct_answer", maxLength: 500, autocomplete: "off" });
    const comment = node("input", { name: "comment", maxLength: 2000, autocomplete: "off" });
    const form = node("form", { className: "correction" },
      node("label", { text: "What would have been right? (optional)" }, correct),
      node("label", { text: "What went wrong? (optional)" }, comment),
      node("button", { type: "submit", text: "Send" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send("down", { comment: comment.value, correct_answer: correct.value });
    });
    box.append(form);
    correct.focus();
  });
  box.append(up, down, note);
  return box;
}

// --- earlier questions ------------------------------------------------------------------------------------------------------
const mine = new Map();

// Another key may have been used in this browser: only questions about inboxes of this one are shown.
function isMine(address) {
  if (!mine.has(address)) {
    const listed = call(`/inboxes?limit=30&contains=${encodeURIComponent(address)}`).then((response) => response.json());
    mine.set(address, listed.then(({ inboxes }) => inboxes.includes(address.toLowerCase())));
    listed.catch(() => mine.delete(address)); // it is asked again after the next answer
  }
  return mine.get(address);
}

async function showHistory() {
  const entries = [];
  for (const entry of past()) if (await isMine(entry.inbox_address)) entries.push(entry);
  const items = entries.map((entry) => {
    const again = node("button", { type: "button", text: entry.question });
    again.addEventListener("click", () => {
      question.value = entry.question;
      inbox.value = entry.inbox_address;
      date.value = entry.query_date;
      offerFollowUp();
      question.focus();
    });
    return node("li", {}, again, node("p", { className: "note", text: `${entry.answer} (${entry.inbox_address}, as of ${entry.query_date})` }));
  });
  $("history").querySelector("ul").replaceChildren(...items);
  $("history").hidden = !items.length;
}

$("forget").addEventListener("click", () => {
  forget();
  $("history").hidden = true;
  announce("Earlier questions are forgotten");
  question.focus();
});

// --- start ------------------------------------------------------------------------------------------------------------------
async function begin() {
  try {
    const [model, { examples }, inboxes] = await Promise.all([
      call("/model").then((response) => response.json()), call("/examples").then((response) => response.json()), showInboxes(),
    ]);
    access.hidden = true;
    mine.clear();
    showHistory().catch(() => {});
    const learnt = model.step ? `after ${model.step} GRPO ${model.step === 1 ? "step" : "steps"}` : "after imitation alone";
    $("about").textContent = `Searches ${model.mails.toLocaleString("en")} mails and shows those that prove the answer. Model: ${model.base_model}, ${learnt} of training run ${model.run}.`;
    if (!inbox.value) inbox.value = examples[0]?.inbox_address ?? inboxes[0] ?? "";
    await showExamples();
  } catch (problem) {
    if (problem.status !== 401) $("about").textContent = said(problem);
  }
}

const today = new Date();
date.value = new Date(today - today.getTimezoneOffset() * 60000).toISOString().slice(0, 10);
begin();
