// Earlier questions and answers. They are kept in this browser and nowhere else, and without the mails.
const NAME = "history", MOST = 30;
const FIELDS = ["question", "inbox_address", "query_date", "answer"];

export function past() {
  try {
    const kept = JSON.parse(localStorage.getItem(NAME)) ?? [];
    return kept.filter((entry) => FIELDS.every((field) => typeof entry?.[field] === "string"));
  } catch {
    return []; // no storage here, or not what this page wrote
  }
}

export function remember(entry) {
  const others = past().filter(({ question, inbox_address }) => question !== entry.question || inbox_address !== entry.inbox_address);
  try {
    localStorage.setItem(NAME, JSON.stringify([entry, ...others].slice(0, MOST)));
  } catch { /* no storage here, or it is full: the page works without */ }
}

export function forget() {
  try {
    localStorage.removeItem(NAME);
  } catch { /* nothing was kept */ }
}
